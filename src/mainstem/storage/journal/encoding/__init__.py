"""The bytes of segments and blocks: laid out, framed, told from bytes that only look like blocks. No I/O."""
