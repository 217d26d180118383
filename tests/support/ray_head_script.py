"""A program that answers as the head of a Ray cluster does, asks it as tfmagic does, and prints what it hears.

A process of its own: gRPC's threads stay out of the test's.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

from tfmagic.backends.remote import ray_head

REPLIES = {  # as Ray 2.60 answers
    "CheckAlive": b"\n\x00\x12\x062.60.0 \x01",
    "GetAllNodeInfo": b"".join(
        b"\x12" + bytes([len(node)]) + node
        for node in (
            b"\n\x03abc\x12\t192.0.2.2(\xeb\xaf\x02B\x02vm",
            b"\n\x03abd\x12\t192.0.2.68\x01",
            b"\n\x03abe\x12\t127.0.0.3",
        )
    ),
}


class Service(grpc.GenericRpcHandler):
    def __init__(self, token):
        self.token = token

    def service(self, details):
        method = details.method.rpartition("/")[2]
        if not details.method.startswith("/ray.rpc.NodeInfoGcsService/"):
            return None
        given = dict(details.invocation_metadata).get("authorization", "")

        def answer(request, context):
            if self.token and given != f"Bearer {self.token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return REPLIES[method]

        return grpc.unary_unary_rpc_method_handler(answer)


def main():
    for token, environ in json.loads(sys.argv[1]):
        server = grpc.server(ThreadPoolExecutor(2))
        if token is not None:
            server.add_generic_rpc_handlers((Service(token),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        head = ray_head.look(f"127.0.0.1:{port}", environ)
        print(json.dumps([head.version, head.asks_token, head.reason, head.nodes]))
        server.stop(0).wait()


main()
