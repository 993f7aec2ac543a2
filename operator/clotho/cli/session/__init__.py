"""What the commands do with a cluster in more than one place: connect, find, draft and create."""
