"""Worker processes in training jobs of Amazon SageMaker, by boto3 alone.

request   what SageMaker is asked, checked        images    its containers, machines, AWS's own library
jobs      the requests about jobs                 launcher  job after job until the run is done
entry     what the container starts               node      which machine it is, and its time
preview   the request and its price, for nobody
"""

from .jobs import Cloud, TrainingJobs
from .launcher import SageMakerLauncher, is_asked
