"""Commands on a Ray cluster: `python -m vattention.ray COMMAND ...`; see docs/evaluation.md.

| file | contents |
|---|---|
| `__main__` | command-line options and exit code |
| `_connect` | connection to the cluster, with a time limit |
| `_driver` | rounds of tasks until no result is missing |
| `_inputs` | input files of the command, and their digests |
| `_results` | the file of results, which grows as tasks end |
| `_task` | work of a Ray worker for one shard |
| `_child` | process that runs the command for a worker |

A task compares the digests of its input files with the driver's before it begins, so that an error
names the file. `_results` also compares the headers of the results, because only the command knows
everything that it reads.
"""
