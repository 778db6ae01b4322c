"""HTTP/1.1 towards clients and engines: bytes in, bytes out, no policies."""
