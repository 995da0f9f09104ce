"""What every room shares: hours, errors, masking, and how AWS is reached."""
