"""This machine: forks, switches in the environment, durable files with one owner, control sockets."""
