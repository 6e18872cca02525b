"""The room of what a stack needs on AWS: made, looked over and taken away with boto3; no machine is started here."""
