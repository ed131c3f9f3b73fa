"""Private teachers: their training, and what separates them from everything that is published."""
