"""What launchers share that bring machines for a job: SkyPilot's and SageMaker's.

upload         what is sent there                  s3_transfer    files through S3
exchange       inputs and outputs of a job         node           on every machine: torchrun
attempts       machines, and others, and none left outcome        what a job's end means
offer          a machine and its price             cost_estimate  what it will cost in all
handed_on      variables and secrets               closing        the store before, the cost after
"""
