"""The operator's console: pages on loopback that ask a coordinator as who starts it.

It opens no new door at the coordinator: each page is the gRPC calls that the commands make, under
the operator's certificate. A user of the page acts as that operator, so it asks for a secret
that only the one who started it has seen.
"""
