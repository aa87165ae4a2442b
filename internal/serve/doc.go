// Package serve is the long-running endpoint behind `roxie serve`: services and exports on one or
// more interfaces, from a configuration file that can be read again while they run.
//
// A Server holds what interfaces share: the memory of the exports (store), and the limits. For each
// interface runs a station, which opens the device, its connection manager and the services, and
// opens them again when the interface has gone and come back:
//
//	Server ── store, store, …          memory and files, mapped once
//	   ├───── limiter                  QPs, memory, connections of each peer
//	   └───── station ── verbs.Context, cm.Manager
//	             └────── service: rping, echo, perftest, exports
//
// The exports' half of what travels is package xfer's. What the package refuses: connections that
// no service expects, peers that are not on an export's list, anything beyond the limits; no
// listening socket of any kind but RDMA-CM's.
package serve
