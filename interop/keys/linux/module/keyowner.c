// SPDX-License-Identifier: GPL-2.0-only
/*
 * keyowner - fast-registered memory of an RDMA device, moved by lines of text.
 *
 * /dev/keyowner takes one command a write and gives its answer to the next
 * read: "= values" or "! reason". Objects are numbers. User space has no verbs
 * for fast registration, so that the rules of it can only be tried from here;
 * the same commands about windows are in ../program, for which the kernel has
 * no verbs. README.md lists the commands.
 */
#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

static char *device = "rxe0";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "RDMA device");

#define MAX_OBJECTS	256
#define MAX_PAGES	16
#define MAX_LINE	256
#define DEPTH		128
#define FIRST_PSN	1000

#define PEER_ACCESS	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | \
			 IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC)

struct conn {
	struct ib_cq *cq;
	struct ib_qp *qp;
};

struct mem {
	u8 *va, *was;			/* was: as it was noted by take */
	int pages;
	struct scatterlist sg[MAX_PAGES];
};

static struct ib_device *dev;
static struct ib_pd *pd[2];
static union ib_gid gid;
static int gid_index;
static struct conn *conns[MAX_OBJECTS];
static struct mem *mems[MAX_OBJECTS];
static struct ib_mr *mrs[MAX_OBJECTS];
static u8 *scratch;			/* for SEND and receive */

static DEFINE_MUTEX(lock);		/* protects everything */
static char answer[MAX_LINE];
static bool answered;

static int __printf(1, 2) say(const char *fmt, ...)
{
	va_list args;

	answer[0] = '=';
	va_start(args, fmt);
	vsnprintf(answer + 1, sizeof(answer) - 1, fmt, args);
	va_end(args);
	return 0;
}

static int place(void **table)
{
	int i;

	for (i = 0; i < MAX_OBJECTS; i++)
		if (!table[i])
			return i;
	return -ENOSPC;
}

static void *object(void **table, u64 i)
{
	return i < MAX_OBJECTS ? table[i] : NULL;
}

#define CONN(i)	((struct conn *)object((void **)conns, i))
#define MEM(i)	((struct mem *)object((void **)mems, i))
#define MR(i)	((struct ib_mr *)object((void **)mrs, i))

/* Queue pairs. */

static void conn_free(struct conn *c)
{
	if (!IS_ERR_OR_NULL(c->qp))
		ib_destroy_qp(c->qp);
	if (!IS_ERR_OR_NULL(c->cq))
		ib_free_cq(c->cq);
	kfree(c);
}

static int do_qp(u64 *a, char *text)
{
	struct ib_qp_init_attr init = {
		.qp_type = IB_QPT_RC, .sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 16,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};
	int i = place((void **)conns);
	struct conn *c;

	if (i < 0 || a[0] > 1)
		return -EINVAL;
	c = kzalloc(sizeof(*c), GFP_KERNEL);
	if (!c)
		return -ENOMEM;
	c->cq = ib_alloc_cq(dev, NULL, 2 * DEPTH, 0, IB_POLL_DIRECT);
	if (!IS_ERR(c->cq)) {
		init.send_cq = c->cq;
		init.recv_cq = c->cq;
		c->qp = ib_create_qp(pd[a[0]], &init);
	}
	if (IS_ERR_OR_NULL(c->qp)) {
		conn_free(c);
		return -ENOMEM;
	}
	conns[i] = c;
	return say(" %d %u %u %*phN", i, c->qp->qp_num, FIRST_PSN, 16, gid.raw);
}

static int do_connect(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);
	struct ib_qp_attr q = {
		.qp_state = IB_QPS_INIT, .port_num = 1, .qp_access_flags = PEER_ACCESS,
	};
	union ib_gid peer;
	int r;

	if (!c || !text || hex2bin(peer.raw, text, sizeof(peer)))
		return -EINVAL;
	r = ib_modify_qp(c->qp, &q, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
			 IB_QP_ACCESS_FLAGS);
	if (r)
		return r;
	q.qp_state = IB_QPS_RTR;
	q.path_mtu = IB_MTU_1024;
	q.dest_qp_num = a[1];
	q.rq_psn = a[2];
	q.max_dest_rd_atomic = 16;
	q.min_rnr_timer = 20;			/* 10 ms */
	q.ah_attr.type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(&q.ah_attr, 1);
	rdma_ah_set_grh(&q.ah_attr, NULL, 0, gid_index, 64, 0);
	rdma_ah_set_dgid_raw(&q.ah_attr, peer.raw);
	r = ib_modify_qp(c->qp, &q, IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU |
			 IB_QP_DEST_QPN | IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC |
			 IB_QP_MIN_RNR_TIMER);
	if (r)
		return r;
	q.qp_state = IB_QPS_RTS;
	q.sq_psn = FIRST_PSN;
	q.timeout = 16;				/* 268 ms */
	q.retry_cnt = 7;
	q.rnr_retry = 7;			/* for ever */
	q.max_rd_atomic = 16;
	return ib_modify_qp(c->qp, &q, IB_QP_STATE | IB_QP_TIMEOUT |
			    IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
			    IB_QP_MAX_QP_RD_ATOMIC);
}

static int do_close(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);

	if (!c)
		return -EINVAL;
	conns[a[0]] = NULL;
	conn_free(c);
	return 0;
}

static int do_state(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);
	struct ib_qp_init_attr init;
	struct ib_qp_attr q;
	int r;

	if (!c)
		return -EINVAL;
	r = ib_query_qp(c->qp, &q, IB_QP_STATE, &init);
	return r ?: say(" %d", q.qp_state);
}

/* Work requests. */

static int do_send(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);
	struct ib_sge sge = { .addr = (uintptr_t)scratch, .length = 16 };
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .sg_list = &sge,
		.num_sge = 1, .send_flags = IB_SEND_SIGNALED };

	if (!c)
		return -EINVAL;
	sge.lkey = c->qp->pd->local_dma_lkey;
	return ib_post_send(c->qp, &wr, NULL);
}

static int do_recv(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);
	struct ib_sge sge = { .addr = (uintptr_t)scratch, .length = PAGE_SIZE };
	struct ib_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	if (!c)
		return -EINVAL;
	sge.lkey = c->qp->pd->local_dma_lkey;
	return ib_post_recv(c->qp, &wr, NULL);
}

static int post_inv(struct conn *c, u32 key)
{
	struct ib_send_wr wr = { .opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED, .ex.invalidate_rkey = key };

	return ib_post_send(c->qp, &wr, NULL);
}

static int do_inv(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);

	return c ? post_inv(c, a[1]) : -EINVAL;
}

static int do_reg(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);
	struct ib_reg_wr wr = { .wr = { .opcode = IB_WR_REG_MR,
		.send_flags = IB_SEND_SIGNALED }, .mr = MR(a[1]), .access = a[2] };

	if (!c || !wr.mr)
		return -EINVAL;
	wr.key = wr.mr->rkey;
	return ib_post_send(c->qp, &wr.wr, NULL);
}

static int wait(struct conn *c, struct ib_wc *wc, unsigned int ms)
{
	ktime_t end = ktime_add_ms(ktime_get(), ms);
	int n;

	for (;;) {
		n = ib_poll_cq(c->cq, 1, wc);
		if (n || ktime_after(ktime_get(), end))
			return n;
		usleep_range(20, 100);
	}
}

static int say_wc(int n, struct ib_wc *wc)
{
	if (n <= 0)
		return say(" -1 0");
	return say(" %d %d", wc->status, !!(wc->wc_flags & IB_WC_WITH_INVALIDATE));
}

static int do_poll(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);
	struct ib_wc wc = {};

	return c ? say_wc(wait(c, &wc, a[1]), &wc) : -EINVAL;
}

/* Memory. */

static void mem_free(struct mem *m)
{
	if (m->va)
		ib_dma_unmap_sg(dev, m->sg, m->pages, DMA_BIDIRECTIONAL);
	free_pages((unsigned long)m->va, get_order(m->pages * PAGE_SIZE));
	free_pages((unsigned long)m->was, get_order(m->pages * PAGE_SIZE));
	kfree(m);
}

static int do_mem(u64 *a, char *text)
{
	int n, i = place((void **)mems), order;
	struct mem *m;

	if (i < 0 || !a[0] || a[0] > MAX_PAGES)
		return -EINVAL;
	m = kzalloc(sizeof(*m), GFP_KERNEL);
	if (!m)
		return -ENOMEM;
	m->pages = a[0];
	order = get_order(m->pages * PAGE_SIZE);
	m->was = (u8 *)__get_free_pages(GFP_KERNEL, order);
	m->va = (u8 *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, order);
	sg_init_table(m->sg, m->pages);
	for (n = 0; m->va && n < m->pages; n++)
		sg_set_buf(m->sg + n, m->va + n * PAGE_SIZE, PAGE_SIZE);
	if (!m->was || !m->va ||
	    ib_dma_map_sg(dev, m->sg, m->pages, DMA_BIDIRECTIONAL) != m->pages) {
		free_pages((unsigned long)m->va, order);
		m->va = NULL;
		mem_free(m);
		return -ENOMEM;
	}
	mems[i] = m;
	return say(" %d %llu", i, (u64)(uintptr_t)m->va);
}

static int do_free(u64 *a, char *text)
{
	struct mem *m = MEM(a[0]);

	if (!m)
		return -EINVAL;
	mems[a[0]] = NULL;
	mem_free(m);
	return 0;
}

static int do_fill(u64 *a, char *text)
{
	struct mem *m = MEM(a[0]);

	if (!m)
		return -EINVAL;
	memset(m->va, a[1], m->pages * PAGE_SIZE);
	return 0;
}

static int do_count(u64 *a, char *text)
{
	struct mem *m = MEM(a[0]);
	size_t i, n = 0;

	if (!m)
		return -EINVAL;
	for (i = 0; i < m->pages * PAGE_SIZE; i++)
		n += READ_ONCE(m->va[i]) == (u8)a[1];
	return say(" %zu", n);
}

static int do_at(u64 *a, char *text)
{
	struct mem *m = MEM(a[0]);

	if (!m || a[1] >= m->pages * PAGE_SIZE)
		return -EINVAL;
	return say(" %u", READ_ONCE(m->va[a[1]]));
}

static int do_taken(u64 *a, char *text)
{
	struct mem *m = MEM(a[0]);
	size_t i, n = 0;

	if (!m)
		return -EINVAL;
	for (i = 0; i < m->pages * PAGE_SIZE; i++)
		n += READ_ONCE(m->va[i]) != m->was[i];
	return say(" %zu", n);
}

/* What an owner does once its memory is its own again. */
static void use(struct mem *m, u64 fill)
{
	size_t len = m->pages * PAGE_SIZE;

	if (fill < 256)
		memset(m->va, fill, len);
	memcpy(m->was, m->va, len);
}

/* take QP KEY MEM FILL: LOCAL_INV, and the memory used at its completion. */
static int do_take(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);
	struct mem *m = MEM(a[2]);
	struct ib_wc wc = {};
	ktime_t start = ktime_get();
	int n, r;

	if (!c || !m)
		return -EINVAL;
	r = post_inv(c, a[1]);
	if (r)
		return r;
	while (!(n = ib_poll_cq(c->cq, 1, &wc)) &&
	       ktime_ms_delta(ktime_get(), start) < 5000)
		cond_resched();
	use(m, a[3]);
	return say_wc(n, &wc);
}

/* Fast regions. */

static int do_fast(u64 *a, char *text)
{
	int i = place((void **)mrs);
	struct ib_mr *mr;

	if (i < 0 || a[0] > 1 || !a[1] || a[1] > MAX_PAGES)
		return -EINVAL;
	mr = ib_alloc_mr(pd[a[0]], IB_MR_TYPE_MEM_REG, a[1]);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	mrs[i] = mr;
	return say(" %d %u", i, mr->rkey);
}

static int do_map(u64 *a, char *text)
{
	struct ib_mr *mr = MR(a[0]);
	struct mem *m = MEM(a[1]);
	int n;

	if (!mr || !m)
		return -EINVAL;
	n = ib_map_mr_sg(mr, m->sg, m->pages, NULL, PAGE_SIZE);
	if (n != m->pages)
		return n < 0 ? n : -ERANGE;
	if (a[2])
		mr->iova = a[2];
	return say(" %llu", mr->iova);
}

static int do_bump(u64 *a, char *text)
{
	struct ib_mr *mr = MR(a[0]);

	if (!mr)
		return -EINVAL;
	ib_update_fast_reg_key(mr, (mr->rkey + 1) & 0xff);
	return say(" %u", mr->rkey);
}

static int do_dereg(u64 *a, char *text)
{
	struct ib_mr *mr = MR(a[0]);

	if (!mr)
		return -EINVAL;
	mrs[a[0]] = NULL;
	return ib_dereg_mr(mr);
}

static int do_user(u64 *a, char *text)
{
	/* All that the kernel has is a registration of all memory. */
	return a[0] > 1 ? -EINVAL : say(" -1 0 %u", pd[a[0]]->local_dma_lkey);
}

/*
 * Holding the responder. rxe calls rxe_mr_copy after it has checked the key; a
 * probe there does what an interrupt or preemption may do at that place.
 */

#define HOLD_MS	400

enum { OFF, ARMED, HELD, GO, GONE };

static int hold;
static unsigned long hold_mr, hold_dir;

/* int rxe_mr_copy(mr, iova, addr, length, dir); ib_mr lies within rxe_mr. */
static int at_copy(struct kprobe *p, struct pt_regs *regs)
{
#ifdef CONFIG_X86_64
	int i;

	if (READ_ONCE(hold) != ARMED || hold_mr - regs->di > 1024 ||
	    regs->r8 != hold_dir || cmpxchg(&hold, ARMED, HELD) != ARMED)
		return 0;
	for (i = 0; i < HOLD_MS * 100 && READ_ONCE(hold) == HELD; i++)
		udelay(10);
	WRITE_ONCE(hold, GONE);
#endif
	return 0;
}

static struct kprobe probe;

/* arm MR READ: hold the next copy through a region. */
static int do_arm(u64 *a, char *text)
{
	struct ib_mr *mr = MR(a[0]);
	int r;

	if (!mr || READ_ONCE(hold) != OFF)
		return -EINVAL;
	hold_mr = (unsigned long)mr;
	hold_dir = a[1] ? 1 : 0;	/* RXE_FROM_MR_OBJ : RXE_TO_MR_OBJ */
	memset(&probe, 0, sizeof(probe));
	probe.symbol_name = "rxe_mr_copy";
	probe.pre_handler = at_copy;
	r = register_kprobe(&probe);
	if (!r)
		WRITE_ONCE(hold, ARMED);
	return r;
}

/*
 * held QP KEY MEM FILL: when the responder is held, LOCAL_INV; the memory used
 * at its completion, if that comes meanwhile; the responder let go.
 */
static int do_held(u64 *a, char *text)
{
	struct conn *c = CONN(a[0]);
	struct mem *m = MEM(a[2]);
	ktime_t start = ktime_get();
	struct ib_wc wc = {};
	bool early;
	int n, r;

	if (!c || !m || READ_ONCE(hold) == OFF)
		return -EINVAL;
	while (READ_ONCE(hold) == ARMED && ktime_ms_delta(ktime_get(), start) < 3000)
		usleep_range(20, 50);
	r = post_inv(c, a[1]);
	if (r)
		return r;
	while (!(n = ib_poll_cq(c->cq, 1, &wc)) && READ_ONCE(hold) == HELD)
		usleep_range(20, 50);
	early = n > 0 && READ_ONCE(hold) == HELD;
	if (early)
		use(m, a[3]);
	cmpxchg(&hold, HELD, GO);
	if (n <= 0)
		n = wait(c, &wc, 3000);
	unregister_kprobe(&probe);
	WRITE_ONCE(hold, OFF);
	return say(" %d %d", n > 0 ? wc.status : -1, early);
}

/* The device file. */

static const struct {
	const char *name;
	int (*run)(u64 *arg, char *text);
	int args;
} commands[] = {
	{ "qp", do_qp, 1 }, { "connect", do_connect, 3 }, { "close", do_close, 1 },
	{ "state", do_state, 1 }, { "send", do_send, 1 }, { "recv", do_recv, 1 },
	{ "inv", do_inv, 2 }, { "reg", do_reg, 3 }, { "poll", do_poll, 2 },
	{ "mem", do_mem, 1 }, { "free", do_free, 1 }, { "fill", do_fill, 2 },
	{ "count", do_count, 2 }, { "at", do_at, 2 }, { "take", do_take, 4 },
	{ "taken", do_taken, 1 }, { "fast", do_fast, 2 }, { "map", do_map, 3 },
	{ "bump", do_bump, 1 }, { "dereg", do_dereg, 1 }, { "user", do_user, 1 },
	{ "arm", do_arm, 2 }, { "held", do_held, 4 },
};

static int run(char *line)
{
	char *name = strsep(&line, " ");
	u64 args[4] = {};
	char *word;
	int i, n;

	for (i = 0; i < ARRAY_SIZE(commands); i++) {
		if (strcmp(commands[i].name, name))
			continue;
		for (n = 0; n < commands[i].args; n++) {
			word = strsep(&line, " ");
			if (!word || kstrtou64(word, 0, &args[n]))
				return -EINVAL;
		}
		return commands[i].run(args, line);
	}
	return -ENOSYS;
}

static ssize_t keyowner_write(struct file *f, const char __user *from, size_t n,
			      loff_t *at)
{
	char line[MAX_LINE];
	int r;

	if (n >= sizeof(line) || copy_from_user(line, from, n))
		return -EINVAL;
	line[n] = 0;
	strim(line);
	mutex_lock(&lock);
	say("%s", "");
	r = run(line);
	if (r)
		snprintf(answer, sizeof(answer), "! error %d", r);
	strlcat(answer, "\n", sizeof(answer));
	answered = true;
	mutex_unlock(&lock);
	return n;
}

static ssize_t keyowner_read(struct file *f, char __user *to, size_t n,
			     loff_t *at)
{
	ssize_t r = 0;

	mutex_lock(&lock);
	if (answered) {
		r = min(n, strlen(answer));
		if (copy_to_user(to, answer, r))
			r = -EFAULT;
		answered = false;
	}
	mutex_unlock(&lock);
	return r;
}

static const struct file_operations keyowner_fops = {
	.owner = THIS_MODULE,
	.read = keyowner_read,
	.write = keyowner_write,
};

static struct miscdevice keyowner_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "keyowner",
	.fops = &keyowner_fops,
};

static void release(void)
{
	int i;

	for (i = 0; i < MAX_OBJECTS; i++) {
		if (conns[i])
			conn_free(conns[i]);
		if (mrs[i])
			ib_dereg_mr(mrs[i]);
	}
	for (i = 0; i < MAX_OBJECTS; i++)
		if (mems[i])
			mem_free(mems[i]);
	for (i = 0; i < 2; i++)
		if (!IS_ERR_OR_NULL(pd[i]))
			ib_dealloc_pd(pd[i]);
	free_page((unsigned long)scratch);
	if (dev)
		ib_device_put(dev);
}

static int find_gid(void)
{
	for (gid_index = 0; gid_index < 16; gid_index++)
		if (!rdma_query_gid(dev, 1, gid_index, &gid) &&
		    ipv6_addr_v4mapped((struct in6_addr *)&gid))
			return 0;
	return -ENOENT;
}

static int __init keyowner_init(void)
{
	int i, r = -ENODEV;

	dev = ib_device_get_by_name(device, RDMA_DRIVER_UNKNOWN);
	if (!dev)
		goto out;
	r = find_gid();
	if (r)
		goto out;
	r = -ENOMEM;
	scratch = (u8 *)get_zeroed_page(GFP_KERNEL);
	if (!scratch)
		goto out;
	for (i = 0; i < 2; i++) {
		pd[i] = ib_alloc_pd(dev, 0);
		if (IS_ERR(pd[i]))
			goto out;
	}
	r = misc_register(&keyowner_misc);
	if (!r)
		return 0;
out:
	release();
	return r;
}

static void __exit keyowner_exit(void)
{
	misc_deregister(&keyowner_misc);
	release();
}

module_init(keyowner_init);
module_exit(keyowner_exit);
MODULE_DESCRIPTION("Fast-registered memory of an RDMA device, moved by lines of text");
MODULE_LICENSE("GPL");
