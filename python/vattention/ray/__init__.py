"""The command's work over a Ray cluster: `python -m vattention.ray COMMAND ...`, described in docs/evaluation.md.

| file | what |
|---|---|
| `__main__` | the options, and the exit code |
| `_driver` | rounds of tasks, until nothing is missing |
| `_inputs` | what the command reads, and its digests |
| `_results` | the file that results are kept in, as they come |
| `_task` | what a worker does for a shard |
| `_child` | the process that runs the command for a worker |
"""
