"""AWS: clients, DynamoDB's items and errors, transactions."""
