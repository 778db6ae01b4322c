"""Processes and sockets: who listens, who takes over, who serves beside whom. Knows the App, no request."""
