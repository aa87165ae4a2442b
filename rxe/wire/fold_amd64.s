#include "textflag.h"

// One step of a fold: what acc holds, multiplied by x to the power of the distance in Z9, is added to
// the 64 bytes at next.
#define FOLD(next, acc, tmp) \
	VPCLMULQDQ $0x11, Z9, acc, tmp \
	VPCLMULQDQ $0x00, Z9, acc, acc \
	VPTERNLOGD $0x96, next, tmp, acc

// func foldVector(s uint32, p *byte, n int, k *[24]uint64) (lo, hi uint64)
TEXT ·foldVector(SB), NOSPLIT, $0-48
	MOVL s+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), DX

	VMOVD     AX, X8
	VMOVDQU64 64(DX), Z9
	MOVQ      CX, BX
	ANDQ      $63, BX
	JNZ       part
	VPXORQ    0(SI), Z8, Z0
	ADDQ      $64, SI
	SUBQ      $64, CX
	JMP       vectors

	// The first bytes, so many that whole vectors follow, are moved to the right, behind zeros, which
	// change nothing, as the register is in the bytes behind them.
part:
	SUBQ        BX, CX
	MOVQ        $-1, R8
	BZHIQ       BX, R8, R9
	KMOVQ       R9, K2
	VMOVDQU8.Z  0(SI), K2, Z0
	ADDQ        BX, SI
	NEGQ        BX
	SHLXQ       BX, R8, R8 // by 64 less what BX was
	KMOVQ       R8, K1
	VPXORQ      Z8, Z0, Z0
	VPEXPANDB.Z Z0, K1, Z0

vectors:
	CMPQ CX, $192
	JB   few

	VMOVDQU64 0(SI), Z1
	VMOVDQU64 64(SI), Z2
	VMOVDQU64 128(SI), Z3
	ADDQ      $192, SI
	SUBQ      $192, CX
	VMOVDQU64 0(DX), Z9
	CMPQ      CX, $256
	JB        merge

four:
	FOLD(0(SI), Z0, Z4)
	FOLD(64(SI), Z1, Z5)
	FOLD(128(SI), Z2, Z6)
	FOLD(192(SI), Z3, Z7)
	ADDQ $256, SI
	SUBQ $256, CX
	CMPQ CX, $256
	JAE  four

merge:
	VMOVDQU64 64(DX), Z9
	FOLD(Z1, Z0, Z4)
	FOLD(Z2, Z0, Z4)
	FOLD(Z3, Z0, Z4)

few:
	TESTQ     CX, CX
	JZ        lanes

one:
	FOLD(0(SI), Z0, Z4)
	ADDQ $64, SI
	SUBQ $64, CX
	JNZ  one

lanes:
	VMOVDQU64     128(DX), Z9
	VEXTRACTI32X4 $3, Z0, X5
	VPCLMULQDQ    $0x11, Z9, Z0, Z4
	VPCLMULQDQ    $0x00, Z9, Z0, Z0
	VPXORQ        Z4, Z0, Z0
	VEXTRACTI64X4 $1, Z0, Y4
	VPXOR         Y4, Y0, Y0
	VEXTRACTI128  $1, Y0, X4
	VPXOR         X4, X0, X0
	VPXOR         X5, X0, X0
	VMOVQ         X0, AX
	VPEXTRQ       $1, X0, BX
	VZEROUPPER
	MOVQ          AX, lo+32(FP)
	MOVQ          BX, hi+40(FP)
	RET
