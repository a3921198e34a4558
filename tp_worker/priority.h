// Leaves cores to other processes.
#pragma once

namespace pitstop::tp_worker {

// Lowers this process's priority. A pass keeps every core busy for as long as it takes. The
// processes that answer between its ops (scheduler, detokenizer, front ends) want a core for
// microseconds, and get it sooner if their priority is higher.
//
// REQUIRES: the process has one thread; those that it starts later inherit the priority.
void yield_to_others();

}  // namespace pitstop::tp_worker
