"""Level 2: everything that knows gRPC, protobuf and Prometheus; servicer beside client."""

import os

# gRPC for Python has no option for the least TLS version and reads this variable when it is
# imported, which only modules below this one do. Our certificates are P-256: with suites for RSA
# alone TLS 1.2 finds none that fits, and TLS 1.3, whose suites are fixed, is what remains.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES256-GCM-SHA384")
# What its C core logs of failed connections comes back to us as an error, which is reported once.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
