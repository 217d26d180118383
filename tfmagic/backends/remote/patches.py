"""The private parts of Ray on which the driver relies, and what works without them."""

from tfmagic.system.patches import Patch, PatchTable

MESSAGES = "the nodes of a head"
OWN_NODE = "Ray's node of this machine"
FREE = "what is free on each node of Ray"

_RAY = "ray>=2.52"

TABLE = PatchTable(
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
        FREE,
        ("ray._private.state:available_resources_per_node()",),
        "the doctor says how many tasks fit now, with what other programs have reserved",
        "the doctor says how many tasks fit when all nodes are free",
        versions_tried=_RAY,
    ),
)
