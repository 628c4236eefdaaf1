"""Who is who: certificates, the authority that signs them, the peers of a connection."""
