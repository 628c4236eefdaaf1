"""Level 2: everything that knows gRPC, protobuf and Prometheus; servicer beside client."""
