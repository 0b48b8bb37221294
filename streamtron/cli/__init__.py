"""The commands, by what they are for; each is a thin face of a function that Python has, too."""
