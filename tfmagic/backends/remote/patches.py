"""The private parts of Ray on which the driver relies, and what works without them."""

from tfmagic.system.patches import Patch, PatchTable

HEAD = "the question to a head"
MESSAGES = "the nodes of a head"
OWN_NODE = "Ray's node of this machine"
DRAINED = "the nodes that Ray drains"
FREE = "what is free on each node of Ray"

_RAY = "ray>=2.52"

TABLE = PatchTable(
    Patch(
        HEAD,
        (
            "ray.core.generated.gcs_service_pb2_grpc:NodeInfoGcsServiceServicer.CheckAlive",
            "ray.core.generated.gcs_service_pb2_grpc:NodeInfoGcsServiceServicer.GetAllNodeInfo",
        ),
        "a start says what is wrong with an address or token, before Ray waits for it or ends the process",
        "a start that Ray refuses ends with Ray's own words or none, and a cluster with nodes on other "
        "machines needs TFCluster.trust_network or TLS",
        versions_tried=_RAY,
    ),
    Patch(
        MESSAGES,
        (
            "ray.core.generated.gcs_pb2:GcsNodeInfo",
            "ray.core.generated.gcs_service_pb2:CheckAliveReply",
            "ray.core.generated.gcs_service_pb2:GetAllNodeInfoReply",
        ),
        "a start says that versions differ, or that this machine is no node, before Ray ends the process",
        "a start on a machine that is no node of the cluster fails without a reason",
        versions_tried=_RAY,
    ),
    Patch(
        OWN_NODE,
        ("ray:init uses _node_ip_address",),
        "Ray takes the first node whose process it sees, also one of another network namespace",
        "Ray chooses by itself among the nodes of this machine",
        versions_tried=_RAY,
    ),
    Patch(
        DRAINED,
        ("ray._private.state:GlobalState.get_draining_nodes()",),
        "a start without room, and the doctor, say which nodes are being drained",
        "they count these nodes as others",
        versions_tried=_RAY,
    ),
    Patch(
        FREE,
        ("ray._private.state:available_resources_per_node()",),
        "the doctor says how many tasks fit now, with what other programs have reserved",
        "the doctor says how many tasks fit when all nodes are free",
        versions_tried=_RAY,
    ),
)
