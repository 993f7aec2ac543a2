"""What is printed and how it fits: tables, views of a run, the part of the screen that is redrawn."""
