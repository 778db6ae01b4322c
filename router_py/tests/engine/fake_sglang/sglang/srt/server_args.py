"""A FAKE parser: the few arguments that the tests use, spelled as SGLang 0.5.22 spells them."""


class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--served-model-name")
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--disaggregation-mode", default="null", choices=["null", "prefill", "decode"])
        parser.add_argument("--disaggregation-transfer-backend", default="mooncake")
        parser.add_argument("--disaggregation-bootstrap-port", type=int, default=8998)
        parser.add_argument("--kv-events-config")
        parser.add_argument("--node-rank", type=int, default=0)
        parser.add_argument("--dp-size", "--dp", type=int, default=1)
        parser.add_argument("--attn-dp-size", type=int, default=1)
        parser.add_argument("--tp-size", type=int, default=1)
        parser.add_argument("--pp-size", type=int, default=1)
        parser.add_argument("--page-size", type=int, default=None)
        parser.add_argument("--api-key")
        parser.add_argument("--enable-metrics", action="store_true")


def prepare_server_args(argv):
    raise ValueError("the fake has no models")
