"""The whole product on one machine: what `make up` starts and `make down` leaves nothing of.

Owns the rule that a stack is one directory (`.local/`): everything it keeps is in there, every
process it starts carries the directory's name in its environment, every container its instance.
Nothing here needs Django set up; what must know the tables is a child process with the settings.
"""
