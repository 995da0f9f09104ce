"""Tables, queues, APIs and files, each in the domain's words."""
