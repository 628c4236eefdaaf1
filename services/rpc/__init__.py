"""The services over gRPC: servicer and client of each, server, channel, metering, errors."""
