"""One module per API: `handle(broker, request, call)` translates a request into calls of ports, and back."""
