"""One runnable application per framework. Each is exercised by a test through a real server."""
