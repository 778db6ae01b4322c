"""The router of infera.serving: prefill/decode dispatch over etcd discovery."""
