import tensorflow as tf


def serve() -> None:
    """Serve the coordinator for ever, in a process that is a worker or a ps."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        cluster, kind, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
        tf.distribute.Server(cluster, job_name=kind, task_index=index, protocol="grpc").join()
