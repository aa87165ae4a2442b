// Package soak is the proof by simulation: engines on a [sim.Fabric] under every fault at once, a
// random load over all operations, and checkers that know what must come out.
//
// A run is decided by its Options alone; [Run] gives the same result, frame for frame, whenever it
// is called with the same ones. Hosts with several shards are joined by reliable and unreliable
// connections and datagrams. Each end of a reliable connection is requester of one stream of work
// requests and responder of another. What every one of them must do is known when it is posted,
// and checked when it completes:
//
//   - memory: each host has one arena of memory and a shadow of what it must hold. Data that
//     arrives is compared with its source, then overwritten in both, so that a request executed twice
//     shows. Memory is compared with the shadow before it is used again, and all of it at the end:
//     a byte written anywhere else is found.
//   - once and in order: a receive completes with the message that must come next, an atomic returns
//     the value of its place in the sequence, an invalidated region is registered again under the
//     same key now and then.
//   - completions: one for each signaled work request, in the order of posting; after an error one
//     for every work request.
//   - keys: regions are mapped, registered, announced, used, invalidated and attacked; each attack
//     has one right outcome. After an invalidation completes the memory must not change any more.
//   - the wire: PSNs and MSNs only go up, nothing is acknowledged that was not delivered, nothing
//     completes that was not acknowledged, one NAK a gap, silence during an RNR wait.
//   - frames and buffers are accounted for, and nothing hangs.
package soak
