"""A stand-in for EC2 that the real SkyPilot drives: an AWS account in a box, for tests and for rehearsals.

What is real: SkyPilot's SDK, API server and provisioner, unpatched; SSH, rsync, Ray, torchrun; the machines' own
processes, file systems, addresses, hostnames, users and logs. What stands in: AWS's API (moto), the machines (Linux
namespaces on this computer; 0.2 s to boot), their network (no way out). What is not there: GPUs, security groups,
Docker, EBS speed and limits, and time (a request is answered at once).

Use (`tests/aws/conftest.py` has the fixture; a farm belongs to one test session and ends with it, also after a crash):

    def test_something(farm):
        with farm.declare("mine"):                                   # a cluster that may run between tests
            farm.run(["python", "launch.py"], timeout=200, check=True)   # in the namespace, with the environment
            head, worker = farm.instances("mine")                    # what costs money now, head first
            farm.preempt(worker, notice_s=120)                       # 0: without a notice
            assert "step 30" in farm.log(head)                       # its console and its jobs' logs; gone ones too
            farm.read(head, "outputs/result.json")                   # any file that a machine wrote

    farm.environment()    what a process inside needs; farm.popen(...), farm.shell(), farm.execute(instance, [...])
    with farm.inside(): farm.client("s3").list_buckets()             # boto3 from the test's own process (this thread)

What can be switched on (all are context managers, and end with their block; `farm.heal()` ends them all):

    farm.no_capacity("g5.*", zone="us-east-1a", spot=True)   InsufficientInstanceCapacity
    farm.quota("P", 0)                                       VcpuLimitExceeded; Service Quotas says 0 too
    farm.expired_credentials()    farm.no_credentials()      the user's; the machines' role goes on to work
    farm.denied("ec2", "TerminateInstances", times=2)        any action of any service
    farm.slow_s3(delay_s=1, bytes_per_s=1e6)
    farm.broken_boot("silent" | "crash")                     machines that do not come up
    farm.fault(service=…, action=…, code=…)                  anything else: `faults.Fault`
    farm.lose(instance) / farm.find(instance)                the network cable (not context managers)
    farm.terminate(instance)                                 somebody ended it in the AWS console

What was asked and what happened: `farm.calls(action="TerminateInstances")`, `farm.events()`, `farm.failures()` (what
went wrong with the farm itself; the fixture fails the test that sees one), `farm.undeclared()`.

Installing on a machine: `uv pip install` and `pip install` are set up to take wheels from /opt/farm/wheels and nothing
else; all packages of this environment are there (`links.py`), so `uv pip install ./x.whl[train] -c constraints.txt`
resolves for real and takes a second. Python is `python3.11` (this environment's own version).

Python programs that have SkyPilot, Ray or ZenML to import start warm, from a process that has imported them (`warm`):
on machines those of SkyPilot that ask and tell, on the test's side the commands themselves (`tests/aws/warmed.py`). It
takes two thirds of a launch's CPU time away and changes nothing else; SKYTUNE_FARM_COLD=1 has all start as on EC2.

Two farms may run at once. Where things are: `catalog` (regions, types, prices, quotas), `bake`/`etc`/`root`/`links`
(the machine image), `namespace`/`enter` (the farm's own namespaces), `cloud` (the service in them: moto behind `gate`,
`faults`, `metadata`, `hypervisor`, `router`, `control`), `machine` (a machine's first process), `prototype`/`warm`/
`ask` (warm Python), `farm`/`looking`/`switches` (the test's side), `cli` (a person's: `make farm`). SKYTUNE_FARM_KEEP=1
leaves an ended farm's folder under ~/.cache/skytune-farm/farms.
"""

from .control import FarmError
from .farm import Farm
from .instance import Instance
from .programs import Unavailable

__all__ = ["Farm", "FarmError", "Instance", "Unavailable"]
