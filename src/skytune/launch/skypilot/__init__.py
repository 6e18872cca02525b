"""Worker processes on machines that SkyPilot brings up for them, and takes away again whatever happened.

    kept      clusters from job to job        scripts   which machines are meant, what is run there
    node      which of them this one is       cluster   SkyPilot's SDK
    monitor   a job followed to its end       recovery  an attempt; machines taken down whatever happened
    messages  SkyPilot's words in ours        secret_cleanup  copies that its server keeps

What SageMaker's launcher does alike is in `launch.remote`.
SkyPilot is imported inside functions only: nobody pays for it on a local run.
"""

from .launcher import SkyPilotLauncher
