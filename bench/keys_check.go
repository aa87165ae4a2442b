package bench

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/rxe/mr"
)

const (
	checkPD    = 7
	checkQPN   = 17
	checkVA    = 0x1000
	hotKeys    = 1024
	checkBatch = 2048    // checks between two quiescent points
	stretchLen = 1 << 14 // checks timed together
)

// tableKeys is how many regions the table has.
func tableKeys(quick bool) int {
	if quick {
		return 1 << 14
	}
	return mr.MaxLimit - 1 - 1 // one for the storm
}

// keyTable is a table full of user regions. Taken in the order of ring they form a chain: the base of
// each view, which a check does not look at, is the key of the next.
type keyTable struct {
	tab   *mr.Table
	grace *mr.Grace
	storm mr.Key   // of a fast region, for the storm
	ring  []mr.Key // all, in random order
	flat  []*mr.View
	memo  []byte // address space that the bases point into
}

// newKeyTable fills a table with n regions. The list behind them is address space only: nobody
// touches it.
func newKeyTable(n int) (*keyTable, error) {
	space, err := unix.Mmap(-1, 0, 1<<32+4096, unix.PROT_NONE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve address space: %w", err)
	}
	t := &keyTable{grace: mr.NewGrace(2), memo: space}
	t.tab = mr.New(mr.MaxLimit, 1, t.grace)
	if t.storm, err = t.tab.AllocFast(checkPD, 16); err != nil {
		return nil, err
	}
	for range n {
		key, err := t.tab.Alloc(mr.KindUser, checkPD)
		if err != nil {
			return nil, err
		}
		t.ring = append(t.ring, key)
	}
	inOrder := append([]mr.Key(nil), t.ring...)
	next := make([]mr.Key, n)
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(n, func(i, j int) { t.ring[i], t.ring[j] = t.ring[j], t.ring[i] })
	first := inOrder[0].Index()
	for i, key := range t.ring {
		next[key.Index()-first] = t.ring[(i+1)%n]
	}
	list := mr.NewList(space)
	t.flat = make([]*mr.View, int(first)+n)
	for i, key := range inOrder {
		v, err := mr.NewView(mr.Region{Key: key, PD: checkPD, Access: mr.LocalWrite | mr.RemoteWrite,
			IOVA: checkVA, Length: 4096, Base: uint64(next[i]), List: list})
		if err != nil {
			return nil, err
		}
		if err := t.tab.Publish(v); err != nil {
			return nil, err
		}
		t.flat[key.Index()] = v
	}
	return t, nil
}

func (t *keyTable) close() { _ = unix.Munmap(t.memo) }

// sample is many keys at random of some.
func sample(keys []mr.Key) []mr.Key {
	rng := rand.New(rand.NewPCG(3, 4))
	out := make([]mr.Key, 1<<18)
	for i := range out {
		out[i] = keys[rng.IntN(len(keys))]
	}
	return out
}

// hot are keys that lie step entries from each other in the table.
func (t *keyTable) hot(step int) []mr.Key {
	var out []mr.Key
	for i := int(t.storm.Index()) + 1; i < len(t.flat) && len(out) < hotKeys; i += step {
		out = append(out, t.flat[i].Key())
	}
	return out
}

// check checks keys that are known ahead.
func (t *keyTable) check(keys []mr.Key) {
	for _, key := range keys {
		_, f := t.tab.Check(key, checkPD, checkQPN, mr.RemoteWrite, checkVA+64, 64)
		if f != mr.FaultNone {
			panic(f)
		}
	}
}

// load does the two loads of a check for each key.
func (t *keyTable) load(keys []mr.Key) (sum uint64) {
	for _, key := range keys {
		sum += t.flat[key.Index()].Base()
	}
	return sum
}

// checkChain takes each key from the view before; so does chase, which does nothing else.
func (t *keyTable) checkChain(key mr.Key, n int) mr.Key {
	for range n {
		v, f := t.tab.Check(key, checkPD, checkQPN, mr.RemoteWrite, checkVA+64, 64)
		if f != mr.FaultNone {
			panic(f)
		}
		key = mr.Key(v.Base())
	}
	return key
}

func (t *keyTable) chase(key mr.Key, n int) mr.Key {
	for range n {
		key = mr.Key(t.flat[key.Index()].Base())
	}
	return key
}

var benchSink uint64 // keeps the compiler from leaving out loops

// checks measures checks, calm and in a storm.
func (k *Keys) checks(rounds, keys int) error {
	t, err := newKeyTable(keys)
	if err != nil {
		return err
	}
	defer t.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hot := t.hot(1)
	one, hots, all := sample(hot[:1]), sample(hot), sample(t.ring)
	far := sample(t.hot(max(keys/hotKeys, 1)))
	part := max(1<<20/keys, 1) // of the work, in a small table
	measure := func(n int, f func(from, to int)) float64 {
		return stretches(max(n/part, stretchLen), stretchLen, f)
	}
	var one1, hot1, far1, random float64
	at, from := t.ring[0], t.ring[len(t.ring)/2]
	for range 4 * rounds { // in turns, for what takes long meets more of what else the machine does
		for range 4 {
			lower(&one1, measure(1<<17, func(a, b int) { t.check(one[a:b]) }))
			lower(&hot1, measure(1<<18, func(a, b int) { t.check(hots[a:b]) }))
			lower(&far1, measure(1<<18, func(a, b int) { t.check(far[a:b]) }))
		}
		lower(&k.Independent.Random, measure(1<<18, func(a, b int) { t.check(all[a:b]) }))
		lower(&k.Independent.Loads, measure(1<<18, func(a, b int) { benchSink += t.load(all[a:b]) }))
		lower(&random, measure(1<<16, func(a, b int) { at = t.checkChain(at, b-a) }))
		lower(&k.ChaseNs, measure(1<<16, func(a, b int) { from = t.chase(from, b-a) }))
	}
	benchSink += uint64(at) + uint64(from)
	runtime.KeepAlive(benchSink)
	k.CheckNs["1"], k.CheckNs["1k_hot"] = one1, hot1
	k.CheckNs["1k_far"], k.CheckNs["1m_random"] = far1, random
	k.RandomOverChase = random / k.ChaseNs
	return k.storms(rounds, t, hots)
}

// storms measures the check of hot keys beside rivals on another core. All are measured alike, in
// stretches so short that a rival runs all through most of them, whatever else the machine does.
func (k *Keys) storms(rounds int, t *keyTable, keys []mr.Key) error {
	own, err := newKeyTable(16)
	if err != nil {
		return err
	}
	defer own.close()
	apart, err := newPairs(t.tab, t.grace, t.storm, 1, 1)
	if err != nil {
		return err
	}
	defer apart.close()
	elsewhere, err := newPairs(own.tab, own.grace, own.storm, 1, 1)
	if err != nil {
		return err
	}
	defer elsewhere.close()
	private := make([]uint64, 512)
	rivals := []struct {
		ns   *float64
		rate float64
		work func() // some 5 to 10 microseconds
	}{
		{&k.Storm.Spin, 0, func() {
			for range 16 {
				for i := range private {
					private[i]++
				}
			}
		}},
		{&k.Storm.Busy, 0, func() { elsewhere.run(pairBatch, false) }},
		{&k.Storm.Storm, 0, func() { apart.run(pairBatch, false) }},
	}
	at := 0
	stretch := func() float64 {
		const batches = 32
		start := time.Now()
		t.grace.Enter(0)
		for range batches {
			t.check(keys[at : at+checkBatch])
			if at += checkBatch; at+checkBatch > len(keys) {
				at = 0
			}
			t.grace.Quiesce(0)
		}
		t.grace.Leave(0)
		return float64(time.Since(start).Nanoseconds()) / (batches * checkBatch)
	}
	for range rounds {
		for range 200 {
			lower(&k.Storm.Calm, stretch())
		}
		for i := range rivals {
			r := &rivals[i]
			ns, rate := beside(r.work, stretch)
			lower(r.ns, ns)
			r.rate = max(r.rate, rate)
		}
	}
	k.Storm.Pairs = rivals[2].rate * pairBatch
	k.Storm.Ratio, k.Storm.Alone = k.Storm.Storm/k.Storm.Calm, k.Storm.Storm/k.Storm.Busy
	k.Storm.Machine = k.Storm.Spin / k.Storm.Calm
	return nil
}

// beside runs stretches while another thread works, and returns the best of those in which that did
// at least 0.8 of its best rate, and the rate, in times of work a second.
func beside(work func(), stretch func() float64) (best, rate float64) {
	var stop atomic.Bool
	var done atomic.Int64
	var end sync.WaitGroup
	end.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for !stop.Load() {
			work()
			done.Add(1)
		}
	})
	for done.Load() == 0 {
		runtime.Gosched()
	}
	var ns, rates []float64
	for range 150 {
		before, start := done.Load(), time.Now()
		ns = append(ns, stretch())
		rates = append(rates, float64(done.Load()-before)/time.Since(start).Seconds())
	}
	stop.Store(true)
	end.Wait()
	rate = slices.Max(rates)
	for i, n := range ns {
		if rates[i] >= 0.8*rate {
			lower(&best, n)
		}
	}
	return best, rate
}
