"""``%tfcluster tensorboard`` and `Cluster.tensorboard`: a TensorBoard that ends with its cluster."""
