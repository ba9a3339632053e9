/* Products with weights of 4 or 8 bits, in groups of inputs with a scale and a least value each, or
   of 16, which are bfloat16 as they are.

   Sixteen outputs are a block. Of each of its groups a block has 16 scales and 16 least values
   (float16 or float32), then words of 32 bits, 16 side by side, one for each output. A word holds
   inputs in pairs, the even ones in its lower half, the odd ones in its upper half, lowest bits
   first: a shift gives the 16 bits of a pair, which bfloat16 products take, and one more the other
   of it. A word of two bfloat16 is such a pair; their groups have no scales.

   A lane is an output, so nothing is summed across lanes. What an output is of a row is summed in
   one order: the inputs of a group, then the groups. It does not depend on the other rows.

   Vectors are those of the CPU: compilers take larger ones apart in memory. */
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#define LANES 16
#elif defined __AVX2__
#define LANES 8
#else
#define LANES 4
#endif
#if defined __AVX512F__ || defined __aarch64__
#define REGISTERS 32
#else
#define REGISTERS 16
#endif
#define OUTPUTS 16              /* of a block */
#define PARTS (OUTPUTS / LANES) /* vectors of a block */
/* Rows of a tile, at most. */
#define ROWS (LANES == 4 && REGISTERS == 16 ? 3 : 6)
#define AHEAD 1024 /* bytes: of few rows a product takes as long as its weights come from memory */
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));
typedef float four __attribute__((vector_size(16), aligned(4)));
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define UNROLL16 _Pragma("GCC unroll 16")

/* Of inputs of a row: their sum, and what integers in their place are multiples of. */
typedef struct {
  float sum, scale;
} Group;

typedef struct {
  const uint8_t *packed;
  const void *x;         /* [rows, in] float32, or what the variant multiplies */
  const Group *x_groups; /* [groups, rows] */
  const float *bias;     /* [out], or none */
  const void *residual;  /* like y, or none */
  void *y;               /* [rows, y_stride] */
  long rows, in, out, group, y_stride;
  int bits, half;       /* of a weight; whether scales are float16 */
  int bfloat16, rounds; /* whether x is; whether y, and so the residual, are */
} Product;

INLINE words widened(const void *from) {
  return __builtin_convertvector(*(const halves *)from, words);
}

/* float16 to float32: the exponent is 112 less than it would be, also of the smallest. */
INLINE floats from_half(const void *from) {
#ifdef __AVX512F__
  return (floats)_mm512_cvtph_ps(_mm256_loadu_si256(from));
#elif defined __F16C__ && defined __AVX2__
  return (floats)_mm256_cvtph_ps(_mm_loadu_si128(from));
#endif
  words stored = widened(from), size = (stored & 0x7fff) << 13;
  floats found = *(floats *)&size * 0x1p112f;
  words bits = *(words *)&found | (stored & 0x8000) << 16;
  return *(floats *)&bits;
}

INLINE floats from_bfloat16(const void *from) {
  words bits = widened(from) << 16;
  return *(floats *)&bits;
}

/* The nearest, the even one of two. */
INLINE halves to_bfloat16(floats value) {
#ifdef __AVX512BF16__
  return (halves)_mm512_cvtneps_pbh((__m512)value);
#endif
  words bits = *(words *)&value;
  words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  words wrong = (words)(value != value);
  return __builtin_convertvector((rounded & ~wrong) | (wrong & 0x7fc0), halves);
}

INLINE floats load(const void *from, long at, int bfloat16) {
  return bfloat16 ? from_bfloat16((const uint16_t *)from + at)
                  : *(const floats *)((const float *)from + at);
}

/* Lanes are added by halves. */
INLINE float total(floats value) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)value);
#else
  four sum = {0};
  UNROLL for (int j = 0; j < LANES / 4; j++) sum += ((const four *)&value)[j];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
#endif
}

INLINE floats scale_of(const uint8_t *at, int half) {
  return half ? from_half(at) : *(const floats *)at;
}

/* Bytes of the scales and least values of a block's group. */
INLINE long head_size(const Product *p) {
  return p->bits == 16 ? 0 : 2 * OUTPUTS * (p->half ? 2 : 4);
}

INLINE long group_size(const Product *p) { return head_size(p) + p->group * p->bits / 8 * OUTPUTS; }

/* Four at least: a piece. */
static long blocks_of(const Product *p) {
  return p->out > 3 * OUTPUTS ? (p->out + OUTPUTS - 1) / OUTPUTS : 4;
}

INLINE void put(const Product *p, long at, long vector, floats sum) {
  if (p->bias) sum += *(const floats *)(p->bias + vector * LANES);
  if (p->rounds) {
    if (p->residual) sum += from_bfloat16((const uint16_t *)p->residual + at);
    *(halves *)((uint16_t *)p->y + at) = to_bfloat16(sum);
  } else {
    if (p->residual) sum += *(const floats *)((const float *)p->residual + at);
    *(floats *)((float *)p->y + at) = sum;
  }
}

INLINE void store(const Product *p, long row, long vector, floats sum) {
  long at = row * p->y_stride + vector * LANES, left = p->out - vector * LANES;
  if (left < LANES) { /* one whose last outputs are there to fill it, at most */
    Product last = *p;
    char beside[64], y[64];
    const int each = p->rounds ? 2 : 4;
    if (left <= 0) return;
    if (p->residual) memcpy(beside, (const char *)p->residual + at * each, left * each);
    if (p->bias) sum += *(const floats *)(p->bias + vector * LANES);
    last.bias = 0, last.y = y, last.residual = p->residual ? beside : 0;
    put(&last, 0, 0, sum);
    memcpy((char *)p->y + at * each, y, left * each);
    return;
  }
  put(p, at, vector, sum);
}

typedef struct {
  floats scale, least;
} Scales;

/* Of a block's group, those of a vector. */
INLINE Scales scales_of(const uint8_t *at, const Product *p, long part) {
  at += part * LANES * (p->half ? 2 : 4);
  return (Scales){scale_of(at, p->half), scale_of(at + head_size(p) / 2, p->half)};
}

#if defined __x86_64__ && !defined __AVX512F__
#define INTEGERS 1 /* of 16 bits are multiplied: twice as many at once as numbers of 32 */
typedef ints Sum;
#else
#define INTEGERS 0
typedef floats Sum;
#endif

/* A total and what a group adds to it; in this order, whatever the tile. */
INLINE floats added(floats total, const Scales *scales, Sum sum, const Product *p, long group,
                    long row) {
  const Group x = p->x_groups[group * p->rows + row];
#if INTEGERS
  total += scales->scale * (__builtin_convertvector(sum, floats) * x.scale);
#elif defined __AVX512F__ /* by name: of some rows of tiles GCC adds otherwise */
  total = (floats)_mm512_fmadd_ps((__m512)scales->scale, (__m512)sum, (__m512)total);
  return (floats)_mm512_fmadd_ps((__m512)scales->least, _mm512_set1_ps(x.sum), (__m512)total);
#else
  total += scales->scale * sum;
#endif
  return total + scales->least * x.sum;
}

/* The `n`th number of words of 32 bits. */
INLINE floats number_of(words stored, int n, const int bits) {
  if (bits == 16) {
    words bits_of = n ? stored & 0xffff0000u : stored << 16;
    return *(floats *)&bits_of;
  }
  ints q = (ints)(stored >> ((n & 1) * 16 + (n >> 1) * bits) & ((1u << bits) - 1));
  return __builtin_convertvector(q, floats);
}

/* Each variant is this: what a word's inputs add to the sums of a tile of rows and blocks. */
#define TILE(NAME, ADD, SHAPES, LAST)                                                              \
  INLINE void NAME##_tile(const Product *p, long row, long block, const int rows,                  \
                          const int blocks, const int bits) {                                      \
    const long groups = p->in / p->group, size = group_size(p), each = p->group * bits / 32;       \
    const int vectors = blocks * PARTS;                                                            \
    const uint8_t *at[4];                                                                          \
    floats total[4 * PARTS][ROWS];                                                                 \
    UNROLL for (int b = 0; b < blocks; b++) at[b] = p->packed + (block + b) * groups * size;       \
    UNROLL16 for (int v = 0; v < vectors; v++)                                                     \
      UNROLL for (int r = 0; r < rows; r++) total[v][r] = (floats){0};                             \
    for (long g = 0; g < groups; g++) {                                                            \
      const long head = head_size(p), end = g * size + AHEAD < groups * size ? 1 : blocks;         \
      const long ahead = AHEAD + (end - 1) * groups * size; /* of the next tile, at the end */     \
      Sum sum[4 * PARTS][ROWS];                                                                    \
      UNROLL16 for (int v = 0; v < vectors; v++)                                                   \
        UNROLL for (int r = 0; r < rows; r++) sum[v][r] = (Sum){0};                                \
      for (long w = 0; w < each; w++) {                                                            \
        const long k = g * p->group + w * (32 / bits);                                             \
        words stored[4 * PARTS];                                                                   \
        UNROLL16 for (int v = 0; v < vectors; v++)                                                 \
          stored[v] = ((const words *)(at[v / PARTS] + head + w * 64))[v % PARTS];                 \
        UNROLL for (int b = 0; b < blocks; b++) {                                                  \
          const uint8_t *next = at[b] + head + w * 64 + ahead;                                     \
          if (rows == 1) __builtin_prefetch(next, 0, 0); /* none reads them again */               \
          else __builtin_prefetch(next);                                                           \
        }                                                                                          \
        ADD                                                                                        \
      }                                                                                            \
      UNROLL16 for (int v = 0; v < vectors; v++) {                                                 \
        Scales scales = {0};                                                                       \
        if (bits < 16) scales = scales_of(at[v / PARTS], p, v % PARTS);                            \
        UNROLL for (int r = 0; r < rows; r++)                                                      \
          total[v][r] = bits < 16 ? added(total[v][r], &scales, sum[v][r], p, g, row + r)          \
                                  : total[v][r] + (floats)sum[v][r];                               \
      }                                                                                            \
      UNROLL for (int b = 0; b < blocks; b++) at[b] += size;                                       \
    }                                                                                              \
    UNROLL16 for (int v = 0; v < vectors; v++)                                                     \
      UNROLL for (int r = 0; r < rows; r++) store(p, row + r, block * PARTS + v, total[v][r]);     \
  }                                                                                                \
  static int NAME(const Product *p, long row, long block, int rows) {                              \
    if (p->bits == 4) { SHAPES(NAME, 4) }                                                          \
    if (p->bits == 8) { SHAPES(NAME, 8) }                                                          \
    LAST(NAME)                                                                                     \
    return rows;                                                                                   \
  }

#define PART_ROWS 288 /* of a part of a product's work, at most */
#define MANY_ROWS 24  /* from so many on unpacking weights for all of them is faster */

/* Tiles of rows and blocks, of as many sums as there are registers for. */
#define PIECE 4 /* blocks */
#define SHAPE(NAME, R, B, BITS)                                                                    \
  if (rows >= R) {                                                                                 \
    for (int b = 0; b < PIECE; b += B) NAME##_tile(p, row, block + b, R, B, BITS);                 \
    return R;                                                                                      \
  }
#define MANY(NAME, BITS) SHAPE(NAME, 6, 2, BITS) SHAPE(NAME, 2, 4, BITS) SHAPE(NAME, 1, 1, BITS)
#define FEW_ROWS(BITS) (REGISTERS == 32 || LANES * BITS == 32 ? 4 : LANES == 8 ? 3 : 2)
#define FEW(NAME, BITS) SHAPE(NAME, FEW_ROWS(BITS), 1, BITS) SHAPE(NAME, 1, 1, BITS)
/* Of bfloat16, which nothing has to be unpacked for. */
#define WHOLE(NAME)                                                                                \
  SHAPE(NAME, 6, 4, 16) SHAPE(NAME, 4, 4, 16) SHAPE(NAME, 2, 4, 16) SHAPE(NAME, 1, 4, 16)
#define NONE(NAME)

#define ADD_FLOATS                                                                                 \
  UNROLL for (int n = 0; n < 32 / bits; n++) {                                                     \
    floats weights[4 * PARTS];                                                                     \
    UNROLL16 for (int v = 0; v < vectors; v++) weights[v] = number_of(stored[v], n, bits);         \
    UNROLL for (int r = 0; r < rows; r++) {                                                        \
      const float x = ((const float *)p->x)[(row + r) * p->in + k + n];                            \
      UNROLL16 for (int v = 0; v < vectors; v++) sum[v][r] += weights[v] * x;                      \
    }                                                                                              \
  }

/* Of two numbers a lane at once: `pair` has the `n`th two of a word, `dot` adds their products with
   two of a row's inputs. */
#ifdef __AVX512BF16__
#define BFLOAT16 1
/* The integers of a word's 16 bits as bfloat16, which has all of 8 bits. */
INLINE words pair(words stored, int n, const int bits) {
  if (bits == 16) return stored;
  if (bits == 4) {
    const short one = 0x3f80, table[32] = {
      0, one, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130,
      0x4140, 0x4150, 0x4160, 0x4170,
      0, one, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130,
      0x4140, 0x4150, 0x4160, 0x4170};
    __m512i shifted = _mm512_srli_epi16((__m512i)stored, 4 * n);
    return (words)_mm512_permutexvar_epi16(shifted, _mm512_loadu_si512(table));
  }
  words mine = stored >> (8 * n);
  floats even = __builtin_convertvector((ints)(mine & 255), floats);
  floats odd = __builtin_convertvector((ints)(mine >> 16 & 255), floats);
  return *(words *)&even >> 16 | *(words *)&odd;
}
INLINE floats dot(floats sum, words pair, int both) {
  return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)pair, (__m512bh)_mm512_set1_epi32(both));
}
#else
#define BFLOAT16 0
#endif
#if INTEGERS
typedef uint16_t shorts __attribute__((vector_size(4 * LANES), aligned(4)));
INLINE words pair(words stored, int n, const int bits) {
  shorts own = (shorts)stored << (16 - bits * (n + 1));
  __asm__("" : "+x"(own)); /* a mask in its place would take one more register */
  return (words)(own >> (16 - bits));
}
INLINE ints dot(ints sum, words pair, int both) {
  const ints x = (ints){0} + both;
#ifdef __AVXVNNI__
  sum = (ints)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)pair, (__m256i)x);
#elif LANES == 8
  sum += (ints)_mm256_madd_epi16((__m256i)pair, (__m256i)x);
#else
  sum += (ints)_mm_madd_epi16((__m128i)pair, (__m128i)x);
#endif
  __asm__("" : "+x"(sum)); /* else products are added up first, which takes more registers */
  return sum;
}
#endif
#if BFLOAT16 || INTEGERS
#define ADD_PAIRS                                                                                  \
  UNROLL for (int n = 0; n < 16 / bits; n++) {                                                     \
    words weights[4 * PARTS];                                                                      \
    UNROLL16 for (int v = 0; v < vectors; v++) weights[v] = pair(stored[v], n, bits);              \
    UNROLL for (int r = 0; r < rows; r++) {                                                        \
      int both;                                                                                    \
      memcpy(&both, (const uint16_t *)p->x + (row + r) * p->in + k + 2 * n, 4);                    \
      UNROLL16 for (int v = 0; v < vectors; v++) sum[v][r] = dot(sum[v][r], weights[v], both);     \
    }                                                                                              \
  }
#if BFLOAT16
TILE(with_pairs, ADD_PAIRS, MANY, WHOLE)
#else
TILE(with_pairs, ADD_PAIRS, FEW, NONE)
#endif
/* The compiler does not see what tiles read and write. */
#define SEEN __asm__ volatile("" ::: "memory")
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
/* The same by tiles of 16 rows, of which there may be fewer, 16 outputs and 32 inputs. */
typedef struct {
  uint8_t palette, start, none[14];
  uint16_t bytes[16];
  uint8_t rows[16];
} Tiles;
static int may_use_tiles;
__attribute__((constructor)) static void ask_for_tiles(void) {
  may_use_tiles = !syscall(SYS_arch_prctl, 0x1023, 18); /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
}

/* Of a block: unpacks a tile of weights, and adds its products to tile `B`. */
#define BLOCK(B, TILE)                                                                             \
  if (B < blocks) {                                                                                \
    const uint8_t *from = at[B] + head + k * bits * 2;                                             \
    words *to = weights[g & 1][B];                                                                 \
    for (long w = 0; w < each; w++) {                                                              \
      words stored = *(const words *)(from + w * 64);                                              \
      __builtin_prefetch(from + w * 64 + AHEAD);                                                   \
      UNROLL for (int n = 0; n < 16 / bits; n++)                                                   \
        to[w * 16 / bits + n] = pair(stored, n, bits);                                             \
    }                                                                                              \
    SEEN;                                                                                          \
    if (!k) _tile_zero(B);                                                                         \
    _tile_loadd(TILE, to, 64);                                                                     \
    _tile_dpbf16ps(B, 4, TILE);                                                                    \
  }
INLINE void tiles(const Product *p, long row, long block, int rows, const int most,
                  const int blocks, const int bits) {
  const long groups = p->in / p->group, size = group_size(p), head = head_size(p);
  const long inputs = p->group < 32 ? p->group : 32, each = inputs * bits / 32;
  const uint8_t *at[4];
  _Alignas(64) words weights[2][4][16];
  _Alignas(64) floats sums[2][4][16] = {0}; /* what lies there else may be slow, such as 1e-40 */
  floats total[16];
  UNROLL for (int b = 0; b < blocks; b++) at[b] = p->packed + (block + b) * groups * size;
  UNROLL16 for (int i = 0; i < most * blocks; i++) total[i] = (floats){0};
  for (long g = 0; g <= groups; g++) {
    if (g < groups) {
      for (long k = 0; k < p->group; k += inputs) {
        _tile_loadd(4, (const uint16_t *)p->x + row * p->in + g * p->group + k, p->in * 2);
        BLOCK(0, 5) BLOCK(1, 6) BLOCK(2, 5) BLOCK(3, 6)
      }
      _tile_stored(0, sums[g & 1][0], 64);
      if (blocks > 1) _tile_stored(1, sums[g & 1][1], 64);
      if (blocks > 2) _tile_stored(2, sums[g & 1][2], 64);
      if (blocks > 3) _tile_stored(3, sums[g & 1][3], 64);
      SEEN;
    }
    UNROLL for (int b = 0; b < blocks; b++) {
      if (g) { /* the group before, whose sums are there by now */
        Scales scales = scales_of(at[b] - size, p, 0);
        UNROLL16 for (int r = 0; r < most; r++)
          total[b * most + r] = added(total[b * most + r], &scales, sums[(g - 1) & 1][b][r], p,
                                      g - 1, row + (r < rows ? r : 0));
      }
      at[b] += size;
    }
  }
  UNROLL for (int b = 0; b < blocks; b++)
    UNROLL16 for (int r = 0; r < most; r++)
      if (r < rows) store(p, row + r, block + b, total[b * most + r]);
}

/* Sums are tiles 0 to 3, inputs 4 and 7, weights 5 and 6; 2, 3 and 7 are of `others`, if any. */
static void shape_tiles(long inputs, int rows, int others) {
  Tiles shape = {1};
  for (int i = 0; i < 8; i++) {
    const int own = i == 2 || i == 3 || i == 7 ? others : rows;
    if (!own) continue;
    shape.bytes[i] = i == 4 || i == 7 ? inputs * 2 : 64;
    shape.rows[i] = i == 5 || i == 6 ? inputs / 2 : own;
  }
  _tile_loadconfig(&shape);
}

/* Of bfloat16, whose words are tiles as they are: inputs of rows, or of 16 and `others`, by two
   blocks. */
INLINE void tiles_of_words(const Product *p, long row, const uint8_t *at, long first, long end,
                           const int others, floats sums[4][16]) {
  const long inputs = p->in % 32 ? 16 : 32, size = p->in * 2 * OUTPUTS;
  const uint16_t *x = (const uint16_t *)p->x + row * p->in;
  _tile_loadd(0, sums[0], 64);
  _tile_loadd(1, sums[1], 64);
  if (others) _tile_loadd(2, sums[2], 64);
  if (others) _tile_loadd(3, sums[3], 64);
  for (long k = first; k < end; k += inputs) {
    const uint8_t *words = at + k * 2 * OUTPUTS;
    for (long w = 0; !others && w < inputs / 2; w++) {
      __builtin_prefetch(words + w * 64 + AHEAD);
      __builtin_prefetch(words + size + w * 64 + AHEAD);
    }
    _tile_loadd(5, words, 64);
    _tile_loadd(6, words + size, 64);
    _tile_loadd(4, x + k, p->in * 2);
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 6);
    if (others) {
      _tile_loadd(7, x + 16 * p->in + k, p->in * 2);
      _tile_dpbf16ps(2, 7, 5);
      _tile_dpbf16ps(3, 7, 6);
    }
  }
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  if (others) _tile_stored(2, sums[2], 64);
  if (others) _tile_stored(3, sums[3], 64);
  SEEN;
}

/* Rows by a piece of blocks, 32 at once. Of more, some inputs meet all rows while the weights of two
   blocks are in the nearest cache. */
#define NEAR 512
static void with_words(const Product *p, long first, long end, long block) {
  const long parts = end - first > 32 ? (p->in + NEAR - 1) / NEAR : 1;
  const long each = (p->in / parts + 31) / 32 * 32, size = p->in * 2 * OUTPUTS;
  const Product still = *p; /* what is stored does not change it, as the compiler sees */
  _Alignas(64) floats sums[PIECE / 2][(PART_ROWS + 31) / 32][4][16];
  for (long k = 0, shaped = 0; k < p->in; k += each)
    for (int b = 0; b < PIECE; b += 2)
      for (long row = first, t = 0; row < end; row += 32, t++) {
        const long rows = end - row < 32 ? end - row : 32, others = rows > 16 ? rows - 16 : 0;
        const long last = k + each < p->in ? k + each : p->in;
        const uint8_t *at = p->packed + (block + b) * size;
        floats (*own)[16] = sums[b / 2][t];
        if (!k) memset(own, 0, sizeof sums[0][0]);
        if (shaped != rows) shape_tiles(p->in % 32 ? 16 : 32, rows - others, others);
        shaped = rows;
        if (others) tiles_of_words(p, row, at, k, last, 1, own);
        else tiles_of_words(p, row, at, k, last, 0, own);
        for (long r = 0; last == p->in && r < rows; r++) {
          store(&still, row + r, block + b, own[r / 16 * 2][r % 16]);
          store(&still, row + r, block + b + 1, own[r / 16 * 2 + 1][r % 16]);
        }
      }
}

static int with_tiles(const Product *p, long row, long block, int left) {
  const int rows = left < 16 ? left : 16;
  shape_tiles(p->group < 32 ? p->group : 32, rows, rows);
#define MORE_THAN(OTHERS, MOST, BLOCKS, BITS)                                                      \
  if (rows > OTHERS) {                                                                             \
    for (int b = 0; b < PIECE; b += BLOCKS) tiles(p, row, block + b, rows, MOST, BLOCKS, BITS);    \
    return rows;                                                                                   \
  }
#define ALL(BITS)                                                                                  \
  MORE_THAN(4, 16, 1, BITS) MORE_THAN(1, 4, 4, BITS) MORE_THAN(0, 1, 4, BITS)
  if (p->bits == 4) { ALL(4) }
  ALL(8)
  return rows;
}
#endif

/* Of many rows: weights of some blocks are unpacked for all of them, some inputs at a time. What an
   output is of a row is summed as above. */
#define INPUTS 256 /* unpacked at once */
#define WIDE (BFLOAT16 ? 2 : 1) /* blocks */
#define TALL 16    /* rows of a tile, at most */
typedef struct {
  words weights[WIDE * PARTS][INPUTS / 2];
  Scales scales[WIDE * PARTS][INPUTS / 16];
} Unpacked;

INLINE void unpack(const Product *p, long block, long first, long groups, const int bits,
                   Unpacked *to) {
  const long head = head_size(p), each = p->group * bits / 32;
  for (int v = 0; v < WIDE * PARTS; v++)
    for (long g = 0; g < groups; g++) {
      const long which = (block + v / PARTS) * (p->in / p->group) + first + g;
      const uint8_t *at = p->packed + which * group_size(p);
      words *weights = to->weights[v] + g * p->group / 2;
      to->scales[v][g] = scales_of(at, p, v % PARTS);
      for (long w = 0; w < each; w++) {
        const words stored = ((const words *)(at + head + w * 64))[v % PARTS];
        UNROLL for (int n = 0; n < 16 / bits; n++)
          weights[w * 16 / bits + n] = pair(stored, n, bits);
      }
    }
}

/* Adds what groups of unpacked weights give to the totals of `tall` rows. */
INLINE void add_vectors(const Product *p, const Unpacked *u, long row, long first, long groups,
                        floats total[WIDE * PARTS][TALL]) {
  for (long g = 0; g < groups; g++) {
    Sum sum[WIDE * PARTS][ROWS];
    UNROLL for (int v = 0; v < WIDE * PARTS; v++)
      UNROLL for (int r = 0; r < ROWS; r++) sum[v][r] = (Sum){0};
    for (long w = g * p->group / 2; w < (g + 1) * p->group / 2; w++)
      UNROLL for (int r = 0; r < ROWS; r++) {
        int both;
        memcpy(&both, (const uint16_t *)p->x + (row + r) * p->in + first * p->group + 2 * w, 4);
        UNROLL for (int v = 0; v < WIDE * PARTS; v++)
          sum[v][r] = dot(sum[v][r], u->weights[v][w], both);
      }
    UNROLL for (int v = 0; v < WIDE * PARTS; v++)
      UNROLL for (int r = 0; r < ROWS; r++)
        total[v][r] = added(total[v][r], &u->scales[v][g], sum[v][r], p, first + g, row + r);
  }
}
#ifdef __AMX_BF16__
INLINE void add_tiles(const Product *p, const Unpacked *u, long row, long first, long groups,
                      floats total[WIDE * PARTS][TALL]) {
  _Alignas(64) floats sums[2][TALL];
  const long inputs = p->group < 32 ? p->group : 32;
  for (int b = 0; b < WIDE; b++) {
    floats own[TALL];
    UNROLL16 for (int r = 0; r < TALL; r++) own[r] = total[b][r];
    for (long g = 0; g <= groups; g++) {
      if (g < groups) {
        _tile_zero(0);
        for (long k = g * p->group; k < (g + 1) * p->group; k += inputs) {
          _tile_loadd(4, (const uint16_t *)p->x + row * p->in + first * p->group + k, p->in * 2);
          _tile_loadd(5, u->weights[b] + k / 2, 64);
          _tile_dpbf16ps(0, 4, 5);
        }
        _tile_stored(0, sums[g & 1], 64);
        SEEN;
      }
      if (g) { /* the group before, whose sums are there by now */
        UNROLL16 for (int r = 0; r < TALL; r++)
          own[r] = added(own[r], &u->scales[b][g - 1], sums[(g - 1) & 1][r], p, first + g - 1,
                         row + r);
      }
    }
    UNROLL16 for (int r = 0; r < TALL; r++) total[b][r] = own[r];
  }
}
#endif

/* Rows by a piece of blocks, in tiles of `tall`; the last begins before the end of the one before
   it, if it must. */
INLINE void many(const Product *p, long first_row, long end_row, long block, const int tall,
                 const int bits) {
  const long all = p->in / p->group, most = INPUTS / p->group;
  _Alignas(64) Unpacked unpacked;
  _Alignas(64) floats totals[PART_ROWS / ROWS][WIDE * PARTS][TALL];
  for (long b = block; b < block + PIECE; b += WIDE)
    for (long first = 0, groups; first < all; first += groups) {
      groups = all - first < most ? all - first : most;
      unpack(p, b, first, groups, bits, &unpacked);
      SEEN;
      for (long row = first_row, t = 0; row < end_row; row += tall, t++) {
        const long at = row + tall > end_row ? end_row - tall : row;
        UNROLL for (int v = 0; !first && v < WIDE * PARTS; v++)
          UNROLL16 for (int r = 0; r < tall; r++) totals[t][v][r] = (floats){0};
#ifdef __AMX_BF16__
        if (tall == TALL) add_tiles(p, &unpacked, at, first, groups, totals[t]);
        else
#endif
          add_vectors(p, &unpacked, at, first, groups, totals[t]);
        if (first + groups == all)
          for (int v = 0; v < WIDE * PARTS; v++)
            for (int r = 0; r < tall; r++) store(p, at + r, b * PARTS + v, totals[t][v][r]);
      }
    }
}
#endif
#ifdef __AVX512F__
TILE(with_floats, ADD_FLOATS, MANY, NONE)
#elif !INTEGERS
TILE(with_floats, ADD_FLOATS, FEW, NONE)
#endif

/* What a thread begins and ends products with: oneDNN counts on finding its tiles as they were. */
typedef struct {
  uint8_t tiles[64];
} Before;
INLINE void begin(Before *before) {
#ifdef __AMX_BF16__
  if (may_use_tiles) _tile_storeconfig(before);
#endif
}
INLINE void finish(Before *before) {
#ifdef __AMX_BF16__
  if (may_use_tiles) _tile_loadconfig(before);
#endif
}

/* Some of the rows that are left, by a piece of blocks; how many. Which variant it is does not
   depend on the rows. */
static int some_rows(const Product *p, long row, long block, int left) {
#if !INTEGERS
  if (!p->bfloat16 || !BFLOAT16) return with_floats(p, row, block, left);
#endif
#ifdef __AMX_BF16__
  const int whole = p->group % 32 == 0 || p->group == 16;
  if (may_use_tiles && whole) return with_tiles(p, row, block, left);
#endif
#if BFLOAT16 || INTEGERS
  return with_pairs(p, row, block, left);
#endif
}

/* Rows of a part of a product's work: so many, but for the last. */
static long part_rows(long rows) {
  const long parts = rows > PART_ROWS ? (rows + PART_ROWS - 1) / PART_ROWS : 1;
  return ((rows + parts - 1) / parts + 47) / 48 * 48;
}

/* A part of the rows by a piece of blocks. */
static void part_of_rows(const Product *p, long part, long block, long rows) {
  const long each = part_rows(rows), first = part * each;
  const long end = first + each < rows ? first + each : rows;
#if BFLOAT16 || INTEGERS
  if ((p->bfloat16 || INTEGERS) && p->bits < 16 && end - first >= MANY_ROWS && p->group <= INPUTS) {
#define MANY_OF(TALL_OF)                                                                           \
  if (p->bits == 4) many(p, first, end, block, TALL_OF, 4);                                        \
  else many(p, first, end, block, TALL_OF, 8);                                                     \
  return;
#ifdef __AMX_BF16__
    if (may_use_tiles && (p->group % 32 == 0 || p->group == 16)) {
      shape_tiles(p->group < 32 ? p->group : 32, TALL, TALL);
      MANY_OF(TALL)
    }
#endif
    MANY_OF(ROWS)
  }
#endif
#ifdef __AMX_BF16__
  if (may_use_tiles && p->bits == 16 && p->bfloat16) {
    with_words(p, first, end, block);
    return;
  }
#endif
  for (long row = first; row < end;) row += some_rows(p, row, block, end - row);
}

/* Bytes beside `x` that a product reads of rows. */
INLINE long inputs_size(const Product *p, long rows) {
  if (p->bits == 16) return 0; /* which nothing is added for */
  const long each = INTEGERS ? 2 : p->bfloat16 && !BFLOAT16 ? 4 : 0;
  return rows * p->in * each + rows * (p->in / p->group) * sizeof(Group);
}

#if INTEGERS
/* Inputs as integers of 16 bits, the largest 32 767: what is lost is less than of bfloat16. */
static Group integers_of(const Product *p, const void *x, long at, int16_t *found) {
  ints size = {0}, sum = {0};
  for (long k = 0; k < p->group; k += LANES) {
    ints own = (ints)load(x, at + k, p->bfloat16) & 0x7fffffff; /* no number is the largest */
    ints larger = own > size;
    size = (own & larger) | (size & ~larger);
  }
  int largest = 0, whole = 0;
  for (int i = 0; i < LANES; i++) largest = size[i] > largest ? size[i] : largest;
  const float most = *(float *)&largest, by = most > 1e-30f ? 32767 / most : 0;
  for (long k = 0; k < p->group; k += LANES) {
    ints own = (ints)(load(x, at + k, p->bfloat16) * by + 12582912.0f) - 0x4b400000; /* rounded */
    sum += own;
    *(halves *)(found + at + k) = __builtin_convertvector(own, halves);
  }
  for (int i = 0; i < LANES; i++) whole += sum[i];
  return (Group){whole * (most / 32767), most / 32767};
}
#endif

/* Makes what a product reads of a row beside `x`, or in its place. */
static void prepare(const Product *p, const void *x, long row, long rows, char *found) {
  if (p->bits == 16) return;
  Group *groups = (Group *)found + row;
  void *own = found + rows * (p->in / p->group) * sizeof(Group);
  for (long at = row * p->in; at < (row + 1) * p->in; at += p->group, groups += rows) {
#if INTEGERS
    *groups = integers_of(p, x, at, own);
#else
    floats sum = {0};
    for (long k = at; k < at + p->group; k += LANES) {
      floats part = load(x, k, p->bfloat16);
      if (p->bfloat16 && !BFLOAT16) *(floats *)((float *)own + k) = part;
      sum += part;
    }
    groups->sum = total(sum);
#endif
  }
}

/* A product that reads what was prepared. */
INLINE Product prepared(Product p, const void *x, const char *found, long rows) {
  const char *own = found + rows * (p.in / p.group) * sizeof(Group);
  p.x = p.bits < 16 && (INTEGERS || (p.bfloat16 && !BFLOAT16)) ? own : x;
  p.x_groups = (const Group *)found, p.rows = rows;
  return p;
}

/* `y = x Wᵀ + b (+ residual)`, of rows whose numbers lie side by side; 0, or 1 without memory. */
int multiply(const Product *layer, const void *x, const void *residual, void *y, long rows) {
  if (!rows) return 0;
  const long blocks = blocks_of(layer);
  char *room = malloc(inputs_size(layer, rows) + 1);
  if (!room) return 1;
  Product p = prepared(*layer, x, room, rows);
  p.residual = residual, p.y = y;
#pragma omp parallel for if (rows > 8)
  for (long row = 0; row < rows; row++) prepare(&p, x, row, rows, room);
  /* A piece of weights meets rows while it is in a cache; the last is all of its size, too. */
  const long pieces = (blocks + PIECE - 1) / PIECE, parts = (rows - 1) / part_rows(rows) + 1;
#pragma omp parallel
  {
    Before before;
    begin(&before);
#pragma omp for
    for (long i = 0; i < pieces * parts; i++) {
      const long at = i % pieces * PIECE;
      part_of_rows(&p, i / pieces, at > blocks - PIECE ? blocks - PIECE : at, rows);
    }
    finish(&before);
  }
  free(room);
  return 0;
}

/* Weights `[rows, in]` of some rows, float32. */
void widen(const Product *p, const int64_t *wanted, long rows, float *found) {
  const long groups = p->in / p->group, size = group_size(p), each = 32 / p->bits;
  const long width = p->half ? 2 : 4, head = head_size(p);
#pragma omp parallel for if (rows > 16)
  for (long i = 0; i < rows; i++) {
    const long row = wanted ? wanted[i] : i, lane = row % OUTPUTS;
    for (long g = 0; g < groups; g++) {
      const uint8_t *at = p->packed + (row / OUTPUTS * groups + g) * size;
      Scales scales = {0};
      if (head) scales = scales_of(at, p, lane / LANES);
      for (long k = 0; k < p->group; k++) {
        const uint32_t word = ((const uint32_t *)(at + head))[k / each * OUTPUTS + lane];
        const int n = k % each;
        const float number = number_of((words){word}, n, p->bits)[0];
        found[i * p->in + g * p->group + k] =
          head ? number * scales.scale[lane % LANES] + scales.least[lane % LANES] : number;
      }
    }
  }
}

/* Packs numbers `[out, in]`, bytes or bfloat16, and scales and least values `[out, groups]`. */
void pack(const Product *p, const void *numbers, const void *scales, const void *least,
          uint8_t *packed) {
  const long groups = p->in / p->group, size = group_size(p), each = 32 / p->bits;
  const long width = p->half ? 2 : 4, head = head_size(p);
#pragma omp parallel for
  for (long block = 0; block < blocks_of(p); block++)
    for (long g = 0; g < groups; g++) {
      uint8_t *at = packed + (block * groups + g) * size;
      for (long lane = 0; lane < OUTPUTS; lane++) {
        const long here = block * OUTPUTS + lane, row = here < p->out ? here : p->out - 1;
        const long one = (row * groups + g) * width;
        const long from = row * p->in + g * p->group;
        if (head) {
          memcpy(at + lane * width, (const char *)scales + one, width);
          memcpy(at + (OUTPUTS + lane) * width, (const char *)least + one, width);
        }
        for (long w = 0; w < p->group / each; w++) {
          uint32_t word = 0;
          for (int n = 0; n < each; n++) {
            const long i = from + w * each + n;
            const uint32_t number =
              p->bits == 16 ? ((const uint16_t *)numbers)[i] : ((const uint8_t *)numbers)[i];
            word |= number << ((n & 1) * 16 + (n >> 1) * p->bits);
          }
          ((uint32_t *)(at + head))[w * OUTPUTS + lane] = word;
        }
      }
    }
}
