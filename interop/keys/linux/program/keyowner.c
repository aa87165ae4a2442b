/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keyowner - memory windows of an RDMA device, moved by lines of text.
 *
 *	keyowner DEVICE		windows and user regions, by libibverbs
 *	keyowner -f FILE	hand each line to FILE and print what it answers
 *
 * One command a line, one line of answer each: "= values" or "! reason". The
 * second form is for the module in ../module, which has the commands of fast
 * registration. ../README.md lists the commands.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_OBJECTS 256
#define USER_LEN 65536
#define PAGE 4096
#define FIRST_PSN 1000

#define PEER_ACCESS                                                            \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

struct conn {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct ibv_context *ctx;
static struct ibv_pd *pd[2];
static struct ibv_mr *user[2];	  /* the same memory in both domains */
static struct ibv_mr *scratch[2]; /* for SEND and receive */
static uint8_t *mem;		  /* of user */
static union ibv_gid gid;
static int gid_index;
static struct conn conns[MAX_OBJECTS];
static struct ibv_mw *windows[MAX_OBJECTS];
static char answer[256];

static int bad(const char *what, int error)
{
	snprintf(answer, sizeof(answer), "! %s: %s", what, strerror(error));
	return -1;
}

static int open_device(const char *name)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	if (!ctx)
		return bad(name, ENODEV);
	for (gid_index = 0; gid_index < 16; gid_index++)
		if (!ibv_query_gid(ctx, 1, gid_index, &gid) && !gid.global.subnet_prefix &&
		    gid.raw[10] == 0xff && gid.raw[11] == 0xff)
			break;
	mem = aligned_alloc(PAGE, USER_LEN);
	uint8_t *other = aligned_alloc(PAGE, PAGE);
	if (gid_index == 16 || !mem || !other)
		return bad(name, ENOENT);
	memset(mem, 0, USER_LEN);
	memset(other, 0, PAGE);
	for (int d = 0; d < 2; d++) {
		pd[d] = ibv_alloc_pd(ctx);
		if (!pd[d])
			return bad("domain", errno);
		user[d] = ibv_reg_mr(pd[d], mem, USER_LEN, PEER_ACCESS | IBV_ACCESS_MW_BIND);
		scratch[d] = ibv_reg_mr(pd[d], other, PAGE, IBV_ACCESS_LOCAL_WRITE);
		if (!user[d] || !scratch[d])
			return bad("region", errno);
	}
	return 0;
}

/* Queue pairs. */

static struct conn *conn(uint64_t i)
{
	return i < MAX_OBJECTS && conns[i].qp ? &conns[i] : NULL;
}

static int do_qp(uint64_t *a, const char *text)
{
	int i = 0;

	(void)text;
	while (i < MAX_OBJECTS && conns[i].qp)
		i++;
	if (i == MAX_OBJECTS || a[0] > 1)
		return bad("QP", EINVAL);
	struct ibv_cq *cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 128, 16, 1, 1, 0 }
	};
	struct ibv_qp *qp = cq ? ibv_create_qp(pd[a[0]], &init) : NULL;
	if (!qp) {
		int error = errno;
		if (cq)
			ibv_destroy_cq(cq);
		return bad("QP", error);
	}
	conns[i] = (struct conn){ cq, qp };
	int at = snprintf(answer, sizeof(answer), "= %d %u %u ", i, qp->qp_num, FIRST_PSN);
	for (int k = 0; k < 16; k++)
		at += snprintf(answer + at, sizeof(answer) - at, "%02x", gid.raw[k]);
	return 0;
}

static int do_connect(uint64_t *a, const char *text)
{
	struct conn *c = conn(a[0]);
	union ibv_gid peer;

	if (!c || !text || strlen(text) != 32)
		return bad("connect", EINVAL);
	for (int k = 0; k < 16; k++)
		if (sscanf(text + 2 * k, "%2hhx", &peer.raw[k]) != 1)
			return bad("connect", EINVAL);
	struct ibv_qp_attr q = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = PEER_ACCESS };
	int r = ibv_modify_qp(c->qp, &q,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	q = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = a[1], .rq_psn = a[2], .max_dest_rd_atomic = 16,
		.min_rnr_timer = 20, /* 10 ms */
		.ah_attr = { .is_global = 1, .port_num = 1,
			.grh = { .dgid = peer, .sgid_index = gid_index, .hop_limit = 64 } } };
	if (!r)
		r = ibv_modify_qp(c->qp, &q,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	q = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = FIRST_PSN, .timeout = 16,
		.retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16 };
	if (!r)
		r = ibv_modify_qp(c->qp, &q,
				  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	return r ? bad("connect", r) : 0;
}

static int do_close(uint64_t *a, const char *text)
{
	struct conn *c = conn(a[0]);

	(void)text;
	if (!c)
		return bad("close", EINVAL);
	int r = ibv_destroy_qp(c->qp);
	if (!r)
		r = ibv_destroy_cq(c->cq);
	*c = (struct conn){ 0 };
	return r ? bad("close", r) : 0;
}

static int do_state(uint64_t *a, const char *text)
{
	struct conn *c = conn(a[0]);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr q;

	(void)text;
	if (!c || ibv_query_qp(c->qp, &q, IBV_QP_STATE, &init))
		return bad("state", EINVAL);
	snprintf(answer, sizeof(answer), "= %d", q.qp_state);
	return 0;
}

/* Work requests. */

static int domain(struct conn *c) { return c->qp->pd == pd[1]; }

static int post(struct conn *c, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *first;

	wr->send_flags |= IBV_SEND_SIGNALED;
	int r = c ? ibv_post_send(c->qp, wr, &first) : EINVAL;
	return r ? bad("post", r) : 0;
}

static int do_send(uint64_t *a, const char *text)
{
	struct conn *c = conn(a[0]);
	struct ibv_sge sge = { .length = 16 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };

	(void)text;
	if (c) {
		sge.addr = (uintptr_t)scratch[domain(c)]->addr;
		sge.lkey = scratch[domain(c)]->lkey;
	}
	return post(c, &wr);
}

static int do_recv(uint64_t *a, const char *text)
{
	struct conn *c = conn(a[0]);
	struct ibv_recv_wr *first;

	(void)text;
	if (!c)
		return bad("receive", EINVAL);
	struct ibv_mr *mr = scratch[domain(c)];
	struct ibv_sge sge = { (uintptr_t)mr->addr, PAGE, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };
	int r = ibv_post_recv(c->qp, &wr, &first);
	return r ? bad("receive", r) : 0;
}

static int do_inv(uint64_t *a, const char *text)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = a[1] };

	(void)text;
	return post(conn(a[0]), &wr);
}

static int do_poll(uint64_t *a, const char *text)
{
	struct conn *c = conn(a[0]);
	struct ibv_wc wc = { 0 };
	struct timespec start, now;

	(void)text;
	if (!c)
		return bad("poll", EINVAL);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (;;) {
		int n = ibv_poll_cq(c->cq, 1, &wc);
		if (n > 0)
			break;
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (n < 0 || (now.tv_sec - start.tv_sec) * 1000 +
				     (now.tv_nsec - start.tv_nsec) / 1000000 >= (long)a[1]) {
			snprintf(answer, sizeof(answer), "= -1 0");
			return 0;
		}
	}
	snprintf(answer, sizeof(answer), "= %d %d", wc.status, !!(wc.wc_flags & IBV_WC_WITH_INV));
	return 0;
}

/* The user memory, which is memory 0. */

static int do_user(uint64_t *a, const char *text)
{
	(void)text;
	if (a[0] > 1)
		return bad("user", EINVAL);
	snprintf(answer, sizeof(answer), "= 0 %llu %u", (unsigned long long)(uintptr_t)mem,
		 user[a[0]]->rkey);
	return 0;
}

static int do_fill(uint64_t *a, const char *text)
{
	(void)text;
	memset(mem, a[1], USER_LEN);
	return 0;
}

static int do_count(uint64_t *a, const char *text)
{
	int n = 0;

	(void)text;
	for (int i = 0; i < USER_LEN; i++)
		n += ((volatile uint8_t *)mem)[i] == (uint8_t)a[1];
	snprintf(answer, sizeof(answer), "= %d", n);
	return 0;
}

static int do_at(uint64_t *a, const char *text)
{
	(void)text;
	if (a[1] >= USER_LEN)
		return bad("at", EINVAL);
	snprintf(answer, sizeof(answer), "= %u", ((volatile uint8_t *)mem)[a[1]]);
	return 0;
}

/* Windows. */

static int do_window(uint64_t *a, const char *text)
{
	int i = 0;

	(void)text;
	while (i < MAX_OBJECTS && windows[i])
		i++;
	if (i == MAX_OBJECTS || a[0] > 1)
		return bad("window", EINVAL);
	windows[i] = ibv_alloc_mw(pd[a[0]], a[1] == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	if (!windows[i])
		return bad("window", errno);
	snprintf(answer, sizeof(answer), "= %d %u", i, windows[i]->rkey);
	return 0;
}

static struct ibv_mw *window(uint64_t i) { return i < MAX_OBJECTS ? windows[i] : NULL; }

/* bind QP WINDOW DOMAIN OFFSET LENGTH ACCESS: the answer is the new key. */
static int do_bind(uint64_t *a, const char *text)
{
	struct conn *c = conn(a[0]);
	struct ibv_mw *mw = window(a[1]);

	(void)text;
	if (!c || !mw || a[2] > 1)
		return bad("bind", EINVAL);
	struct ibv_mw_bind_info info = { user[a[2]], (uintptr_t)mem + a[3], a[4], a[5] };
	uint32_t key = ibv_inc_rkey(mw->rkey);
	if (mw->type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind b = { .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
		int r = ibv_bind_mw(c->qp, mw, &b); /* changes mw->rkey */
		if (r)
			return bad("bind", r);
		key = mw->rkey;
	} else {
		struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW,
			.bind_mw = { .mw = mw, .rkey = key, .bind_info = info } };
		if (post(c, &wr))
			return -1;
		mw->rkey = key;
	}
	snprintf(answer, sizeof(answer), "= %u", key);
	return 0;
}

static int do_dealloc(uint64_t *a, const char *text)
{
	struct ibv_mw *mw = window(a[0]);

	(void)text;
	if (!mw)
		return bad("window", EINVAL);
	windows[a[0]] = NULL;
	int r = ibv_dealloc_mw(mw);
	return r ? bad("window", r) : 0;
}

static const struct {
	const char *name;
	int (*run)(uint64_t *arg, const char *text);
	int args;
} commands[] = {
	{ "qp", do_qp, 1 },	    { "connect", do_connect, 3 }, { "close", do_close, 1 },
	{ "state", do_state, 1 },   { "send", do_send, 1 },	  { "recv", do_recv, 1 },
	{ "inv", do_inv, 2 },	    { "poll", do_poll, 2 },	  { "user", do_user, 1 },
	{ "fill", do_fill, 2 },	    { "count", do_count, 2 },	  { "at", do_at, 2 },
	{ "window", do_window, 2 }, { "bind", do_bind, 6 },	  { "dealloc", do_dealloc, 1 },
};

static int run(char *line)
{
	char *rest = line, *name = strsep(&rest, " ");
	uint64_t args[6] = { 0 };

	for (unsigned i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		if (strcmp(commands[i].name, name))
			continue;
		for (int n = 0; n < commands[i].args; n++) {
			char *word = strsep(&rest, " ");
			if (!word)
				return bad(name, EINVAL);
			args[n] = strtoull(word, NULL, 0);
		}
		return commands[i].run(args, rest);
	}
	return bad(name, ENOSYS);
}

static int hand_on(const char *line, int file)
{
	ssize_t n = write(file, line, strlen(line));

	n = n < 0 ? n : read(file, answer, sizeof(answer) - 1);
	if (n < 0)
		return bad(line, errno);
	answer[n] = 0;
	answer[strcspn(answer, "\n")] = 0;
	return 0;
}

int main(int argc, char **argv)
{
	char line[256];
	int file = -1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 3 && !strcmp(argv[1], "-f")) {
		file = open(argv[2], O_RDWR);
		if (file < 0) {
			perror(argv[2]);
			return 1;
		}
	} else if (argc != 2) {
		fprintf(stderr, "usage: keyowner DEVICE | keyowner -f FILE\n");
		return 2;
	} else if (open_device(argv[1])) {
		fprintf(stderr, "%s\n", answer);
		return 1;
	}
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		strcpy(answer, "=");
		if (file >= 0)
			hand_on(line, file);
		else
			run(line);
		puts(answer);
	}
	return 0;
}
