"""Level 2: everything that knows gRPC, protobuf and Prometheus; servicer and client side by side."""
