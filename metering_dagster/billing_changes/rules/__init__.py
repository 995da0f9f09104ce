"""Decisions of this room: plain values in, plain values out."""
