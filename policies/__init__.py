"""Networks that turn observation rows into action chunks, one file each."""
