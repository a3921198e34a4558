"""The calls of both doors, for both clients. Each method sends one message and gets one reply; generate's
is a stream.

Client's methods return the reply, AsyncClient's an awaitable of it. A reply is a dict with the
fields of docs/protocol.md (absent fields have their defaults). A failed control call
raises PitstopError with the whole reply in `reply`.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Generic, Mapping, Optional, Sequence, TypeVar

from .messages import Prompt, Routes, generate_body

CALL_TIMEOUT_S = 10.0
UPDATE_TIMEOUT_S = 600.0

StreamType = TypeVar("StreamType")  # Stream or AsyncStream


class Calls(Generic[StreamType]):
    def _start_request(self, rid: str, body: dict[str, Any], timeout: Optional[float]) -> StreamType:
        """Sends a `generate` at once."""
        raise NotImplementedError

    def generate(
        self,
        prompt: Prompt,
        *,
        rid: str = "",
        stream: bool = True,
        text_output: bool = True,
        logprobs: Any = None,
        priority: int = 0,
        kv_tolerance: str = "never",
        kv_max_lag: int = 0,
        replica: Optional[int] = None,
        adapter: str = "",
        routed_experts_start: Optional[int] = None,
        routed_experts: Optional[Routes] = None,
        draft_ids: Optional[Sequence[int]] = None,
        draft_key: Optional[str] = None,
        turn: Optional[Mapping[str, Any]] = None,
        timeout: Optional[float] = None,
        **sampling: Any,
    ) -> StreamType:
        """Starts a request at once. Returns its output: a Stream of Client, or an AsyncStream of AsyncClient.

        prompt    text, or token ids
        rid       its id, unique among this client's open requests; empty: a random one
        stream    one chunk per step; False: one chunk at the end
        adapter   the name of a loaded adapter; empty: the model alone
        logprobs  True, or a dict: {"enabled": True, "top": 5, "prompt_start": 0, "ids": [...]}
        routed_experts_start  for a model of experts: chunks have the routes of all tokens from this index on
        routed_experts        the routes that the prompt's tokens must use; the last token's may be missing
        draft_ids             with --speculate: token ids to draft from, such as an earlier output; no token depends on them
        draft_key             with --speculate: requests with equal keys draft from each other's outputs
        turn                  how the prompt continues from a conversation: docs/protocol.md's Turn
        timeout   seconds after which the request is cancelled and raises "deadline_exceeded"
        sampling  max_new_tokens, temperature, top_k, top_p, min_p, seed, stop, ...: SamplingParams
                  of docs/protocol.md
        """
        rid = rid or uuid.uuid4().hex
        options = {
            "stream": stream,
            "text_output": text_output,
            "logprobs": logprobs,
            "priority": priority,
            "kv_tolerance": kv_tolerance,
            "kv_max_lag": kv_max_lag,
            "replica": replica,
            "adapter": adapter or None,
            "routed_experts_start": routed_experts_start,
            "routed_experts": routed_experts.body() if routed_experts is not None else None,
            "draft_ids": list(draft_ids) if draft_ids is not None else None,
            "draft_key": draft_key,
            "turn": dict(turn) if turn is not None else None,
        }
        return self._start_request(rid, generate_body(rid, prompt, sampling, options), timeout)

    def call(self, door: str, kind: str, timeout: float = CALL_TIMEOUT_S, **fields: Any) -> Any:
        """Any call by its message type: call("admin", "status")."""
        raise NotImplementedError

    def _control(self, kind: str, timeout: float, **fields: Any) -> Any:
        """A call whose message has the deadline too, so that the tree's error can name the silent rank."""
        given = {name: value for name, value in fields.items() if value is not None}
        return self.call("admin", kind, timeout, timeout_ms=max(1, int(timeout * 1000)), **given)

    # ---- data door ----

    def tokenize(self, text: str, add_special_tokens: bool = True, timeout: float = CALL_TIMEOUT_S) -> Any:
        """Returns {"ids": [...], "text": the text that the ids decode to}."""
        return self.call("data", "tokenize", timeout, text=text, add_special_tokens=add_special_tokens)

    def detokenize(self, ids: Sequence[int], skip_special_tokens: bool = False, timeout: float = CALL_TIMEOUT_S) -> Any:
        """Returns {"ids": [...], "text": "..."}."""
        return self.call("data", "tokenize", timeout, ids=list(ids), skip_special_tokens=skip_special_tokens)

    def open_conversation(
        self, id: str = "", idle_timeout_s: Optional[float] = None, timeout: float = CALL_TIMEOUT_S
    ) -> Any:
        """Returns {"id": ...}: `turn` of a generate names it (docs/protocol.md's Turn)."""
        more = {} if idle_timeout_s is None else {"idle_timeout_s": idle_timeout_s}
        return self.call("data", "open_conversation", timeout, id=id, **more)

    def close_conversation(self, id: str, timeout: float = CALL_TIMEOUT_S) -> Any:
        return self.call("data", "close_conversation", timeout, id=id)

    def render_chat(
        self,
        messages: Sequence[Any],
        continue_final_message: bool = False,
        chat_template: str = "",
        timeout: float = CALL_TIMEOUT_S,
        **variables: Any,
    ) -> Any:
        """Returns {"text": the prompt, "ids": its tokens}. `variables`: tools, add_generation_prompt, ..."""
        return self.call(
            "data",
            "render_chat",
            timeout,
            variables=json.dumps({"messages": messages, **variables}),
            continue_final_message=continue_final_message,
            chat_template=chat_template,
        )

    # ---- admin door ----

    def status(self, timeout: float = CALL_TIMEOUT_S) -> Any:
        """The whole tree: {"model", "open_requests", "replicas": [{"state", "epoch", ...}], ...}."""
        return self._control("status", timeout)

    def pause(self, mode: str = "abort", max_pause_s: float = 0.0, timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Stops generating: mode "abort", "in_place", "retract" or "wait"."""
        return self._control("pause_generation", timeout, mode=mode, max_pause_s=float(max_pause_s))

    def continue_generation(self, timeout: float = CALL_TIMEOUT_S) -> Any:
        """Continues generation; does nothing if it runs already."""
        return self._control("continue_generation", timeout)

    def abort(
        self,
        rids: Optional[Sequence[str]] = None,
        all: bool = False,
        message: str = "",
        timeout: float = CALL_TIMEOUT_S,
    ) -> Any:
        """Ends requests of any client by exact id. Returns {"results": [{"rid", "outcome"}]}."""
        given = {"rids": list(rids)} if rids else {}
        return self._control("abort", timeout, all=all, message=message, **given)

    def flush_cache(self, wait_idle: bool = False, timeout: float = CALL_TIMEOUT_S, reset_running: bool = False) -> Any:
        """Drops all cached prefixes. reset_running: running requests return to the queue with their tokens, and their
        KV is dropped, too."""
        return self._control("flush_cache", timeout, wait_idle=wait_idle, reset_running=reset_running)

    def set_weight_label(self, label: str, abort_all: bool = False, timeout: float = CALL_TIMEOUT_S) -> Any:
        """Gives the version that serves another label; epoch and digest stay."""
        return self._control("set_weight_label", timeout, label=label, abort_all=abort_all)

    def release_memory(
        self, tags: Optional[Sequence[str]] = None, keep_weights: bool = False, timeout: float = UPDATE_TIMEOUT_S
    ) -> Any:
        """Gives the memory of these tags back: "weights", "kv_cache"; None: all that is resident."""
        return self._control("release_memory", timeout, tags=list(tags) if tags else None, keep_weights=keep_weights)

    def resume_memory(self, tags: Optional[Sequence[str]] = None, timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Takes released memory again, at the same addresses; None: all that is released."""
        return self._control("resume_memory", timeout, tags=list(tags) if tags else None)

    def shutdown(self, drain_s: float = 0.0, timeout: float = CALL_TIMEOUT_S) -> Any:
        """Ends the tree; open requests may still run for drain_s seconds."""
        return self._control("shutdown", timeout, drain_s=float(drain_s))

    def update_weights(
        self,
        path: Optional[str] = None,
        mode: str = "staged",
        kv_policy: str = "keep",
        label: str = "",
        timeout: float = UPDATE_TIMEOUT_S,
        **update: Any,
    ) -> Any:
        """Stages, verifies, votes and commits in one call. The weights come from a checkpoint directory, or from `source`, a
        dict with the fields of docs/protocol.md's WeightSource (bytes are sent unchanged)."""
        return self._control("update_weights", timeout, update=_update(path, mode, kv_policy, label, update))

    def load_adapter(
        self, name: str, path: str, config: str = "", label: str = "", timeout: float = UPDATE_TIMEOUT_S, **update: Any
    ) -> Any:
        """Loads or replaces an adapter (LoRA) from a directory as PEFT writes it. `config`: adapter_config.json as text,
        instead of the directory's. `update` are further fields of docs/protocol.md's UpdateSpec."""
        if config:
            update["adapter_config"] = config
        return self.update_weights(path, label=label, timeout=timeout, adapter=name, **update)

    def unload_adapter(self, name: str, timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Unloads an adapter: new requests cannot name it any more, and open requests keep it until they end. Waits for
        updates in progress."""
        return self._control("unload_adapter", timeout, name=name)

    def stage_weights(
        self, path: str, kv_policy: str = "keep", label: str = "", timeout: float = UPDATE_TIMEOUT_S, **update: Any
    ) -> Any:
        """The first half of update_weights; commit_weights or drop_stage is the second."""
        return self._control("stage_weights", timeout, update=_update(path, "staged", kv_policy, label, update))

    def begin_update(
        self,
        idle_timeout: float = 300.0,
        timeout: float = UPDATE_TIMEOUT_S,
        take_over: bool = False,
        holder: str = "",
        **update: Any,
    ) -> Any:
        """Opens a session: update_bucket sends tensors, commit_weights verifies and commits all of
        them as one, drop_stage discards them. Returns {"session": its number, ...}. take_over first drops the
        idle session or stage of a trainer that is gone. `holder` names this session's owner in others' errors."""
        update.setdefault("source", {"kind": "buckets"})
        return self._control(
            "begin_update",
            timeout,
            idle_timeout_ms=max(1, int(idle_timeout * 1000)),
            take_over=take_over or None,
            holder=holder or None,
            update=update,
        )

    def update_bucket(self, source: dict[str, Any], session: int = 0, timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Sends some tensors of the open session. A failed call drops the session."""
        return self._control("update_bucket", timeout, source=source, session=session)

    def commit_weights(
        self,
        kv_policy: Optional[str] = None,
        session: int = 0,
        label: str = "",
        digest: str = "",
        timeout: float = UPDATE_TIMEOUT_S,
    ) -> Any:
        """All ranks swap to the staged version, or the session's, at one step boundary."""
        return self._control(
            "commit_weights", timeout, kv_policy=kv_policy, session=session, label=label, digest=digest
        )

    def refused_part(self, why: str, timeout: float = CALL_TIMEOUT_S) -> Any:
        """For front ends: reports a refused call that named no session, and may have been a part of a version. The
        collected calls are dropped, and the next continue is refused once with the reason (docs/weights.md)."""
        return self._control("refused_part", timeout, why=why)

    def drop_stage(self, session: int = 0, timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Discards the staged version, or the session."""
        return self._control("drop_stage", timeout, session=session)

    def init_group(self, group: str, backend: str = "nccl", timeout: float = UPDATE_TIMEOUT_S, **spec: Any) -> Any:
        """Every worker joins the trainer's group; broadcast.py is a trainer's side."""
        return self._control("init_group", timeout, spec={"group": group, "backend": backend, **spec})

    def destroy_group(self, group: str, timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Every worker leaves the group."""
        return self._control("destroy_group", timeout, group=group)

    def rollback_weights(self, kv_policy: str = "keep", timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Returns to the version before the last commit, as long as its copy is retained."""
        return self._control("rollback_weights", timeout, kv_policy=kv_policy)

    def rollback_adapter(self, name: str, policy: str = "finish", timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """An adapter returns to the version before its last load, until the next load of the name begins. `policy`: what
        happens to open requests that have the version that serves now: finish, keep or recompute."""
        return self._control("rollback_weights", timeout, adapter=name, adapter_policy=policy)

    def get_weights(self, name: str, timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Reads a tensor by name: {"epoch", "tensor": {"dtype", "shape"}, "data": row-major bytes}."""
        return self._control("get_weights", timeout, name=name)

    def weight_digests(self, timeout: float = UPDATE_TIMEOUT_S) -> Any:
        """Computes the digests of the resident weights now: {"digest", "tensors": [...]}."""
        return self._control("weight_digests", timeout)


def _update(path: Optional[str], mode: str, kv_policy: str, label: str, more: dict[str, Any]) -> dict[str, Any]:
    """The `update` of a message; `more` are the further fields of docs/protocol.md's UpdateSpec."""
    return {
        "source": {"kind": "disk", "path": str(path or "")},
        "mode": mode,
        "kv_policy": kv_policy,
        "label": label,
        **more,
    }
