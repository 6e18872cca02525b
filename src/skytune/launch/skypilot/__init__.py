"""Worker processes on machines that SkyPilot brings up for them, and takes away again whatever happened.

    machine   which machines are meant          upload   what is sent there         scripts   what is run there
    node      on every machine: torchrun        cluster  SkyPilot's SDK             monitor   a job followed to its end
    choosing  a machine and its price           expected what it will cost in all   recovery  others, and none left
    passing   files through S3
    verdict   what its end means                waiting  while signals are heard

SkyPilot is imported inside functions only: nobody pays for it on a local run.
"""

from .launcher import SkyPilotLauncher
from .machine import STORE, VARIABLE, machines_asked, merged
