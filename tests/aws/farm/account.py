"""Names that the account's two sides, its service and its user, have to agree on."""

PORT = 5000
"""Where AWS's API answers: at 127.0.0.1 for the user, at `router.ROUTER` for machines."""

USER_KEY = "AKIAFARMUSER"
"""The access key in the user's ~/.aws/credentials; machines sign with their role's instead."""

USER_SECRET = "farm-user-secret"

ROLE = "skypilot-v1"
"""The instance role that SkyPilot makes in an account; the stand-in's account has it from the start."""

ROLE_KEY = "ASIAFARMINSTANCEROLE"

CERTIFICATE = "outside.pem"
"""In the farm's folder: the certificate of what plays the internet."""
