"""A case for somebody who has the wheel and nothing of ours: the trace, the configuration, and a script that shows what happens.

The script needs ``ai-dynamo-runtime`` alone. It runs the replay in a child process with a time limit, since the engine may
loop for ever, and prints what a user would see: how each request ended, and the last passes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from adapters.cases import fixed_times, workload_of
from adapters.dynamo.mapping import engine_argument, trace_text
from adapters.dynamo.release import Release
from model.case import Case
from model.config import NANOSECONDS_PER_MS, EngineConfig
from model.errors import BadInput

TRACE = "trace.jsonl"
CONFIGURATION = "engine.json"
OLDER_CONFIGURATION = "engine-1.5.json"
SCRIPT = "show.py"
CAP_PASSES = 200
NEWER = Release("1.6.1", mapping=True)
OLDER = Release("1.5.1", mapping=False)

_SCRIPT = '''"""{title}

{expected}

Needs nothing but the wheel: pip install --no-deps ai-dynamo-runtime==1.6.1 (or 1.5.1)
Run: python show.py
"""
import json, os, pathlib, subprocess, sys

SECONDS = 10          # of wall time, after which the replay counts as hanging
CAP_MS = {cap_ms}     # of virtual time
TICK_MS = {tick_ms}   # between looks at the engine

here = pathlib.Path(__file__).parent
if len(sys.argv) == 1:
    environment = dict(os.environ, DYN_LOG="error")
    try:
        subprocess.run([sys.executable, __file__, "replay"], timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        print(f"the replay does not end: killed after {{SECONDS}} s")
    sys.exit()

import dynamo._core as core


class Watch:
    """Never scales; keeps the passes it is shown."""

    passes = []

    def initial_tick_ms(self):
        return 0.0

    def on_tick(self, snapshot):
        self.passes += [(snapshot["now_ms"], record) for record in snapshot["decode_fpm_snapshots"]]
        return {{"next_tick_ms": snapshot["now_ms"] + TICK_MS, "target_prefill": None, "target_decode": None}}


print("ai-dynamo-runtime", core.__version__, flush=True)
if hasattr(core, "_normalize_mocker_config"):
    engine = json.loads((here / "engine.json").read_text())
else:
    engine = core.MockEngineArgs.from_json((here / "engine-1.5.json").read_text())  # not there: the case needs 1.6
try:
    result = core.run_mocker_trace_replay(
        [here / "trace.jsonl"], extra_engine_args=engine, trace_block_size=1, capture_per_request=True,
        max_sim_time_ms=CAP_MS, scaling_policy=Watch())
except Exception as error:
    print("the replay fails:", error)
else:
    print(result.summary["completed_requests"], "of {count} requests completed by", CAP_MS, "ms of virtual time")
    for row in result.per_request:
        print(f"  {{row['input_length']}} tokens at {{row['arrival_time_ms']}} ms: {{row['terminal_status']}} at "
              f"{{row['terminal_time_ms']}} ms, {{row['output_length']}} of {{row['requested_output_length']}} tokens")
print(len(Watch.passes), "passes seen; the last of them:")
for at, record in Watch.passes[-8:]:
    print(f"  {{at}} ms: prefill {{record['num_prefill_requests']}} ({{record['sum_prefill_tokens']}} tokens), decode "
          f"{{record['num_decode_requests']}}, queued {{record['num_queued_prefill']}} + {{record['num_queued_decode']}}")
'''


def export(case: Case, directory: Path) -> list[Path]:
    """Write ``case`` for the wheel alone.

    Args:
        case: timed, or made so (``adapters.cases``); with pass times that are not fixed it gets ones that are.
        directory: where to; made when it is not there. Files of the same names are replaced.

    Returns:
        The files written.

    Raises:
        BadInput: for what the engine cannot be told; nothing is written then.
    """
    config = fixed_times(case.engine)
    workload = workload_of(case)
    contents = {TRACE: trace_text(workload), CONFIGURATION: _document(config, NEWER)}
    # What only newer releases know leaves the older ones out.
    with suppress(BadInput):
        contents[OLDER_CONFIGURATION] = _document(config, OLDER)
    longest = config.timing.prefill_ms + config.timing.decode_ms or 1
    cap_ms = float(workload.last_arrival_ns / NANOSECONDS_PER_MS) + CAP_PASSES * longest
    times = [ms for ms in (config.timing.prefill_ms, config.timing.decode_ms) if ms]
    expected = f"Broken: {', '.join(case.expect.violates)}." if case.expect.violates else "Nothing is broken."
    contents[SCRIPT] = _SCRIPT.format(
        title=(case.title or "A case for the simulated engine.").replace("\\", "/").replace('"', "'"),
        expected=expected,
        cap_ms=cap_ms,
        tick_ms=float(min(times, default=1)),
        count=len(workload.requests),
    )
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in contents.items():
        path = directory / name
        path.write_text(text)
        written.append(path)
    return written


def _document(config: EngineConfig, release: Release) -> str:
    return json.dumps(engine_argument(config, release), indent=2) + "\n"
