"""How a chunk of clients is executed. All engines share the local rules; `sequential` is the reference."""
