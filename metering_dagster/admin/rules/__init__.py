"""What decides: plain values in, plain values out."""
