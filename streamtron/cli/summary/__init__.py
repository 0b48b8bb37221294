"""What the commands say at the end, as aligned text: from plain values to lines."""
