/* Words at any byte, and nibbles looked up: what unpack.h needs where blocks do not end with a word, or where codes are
 * from a table of sixteen. With AVX512-VBMI2 two words are joined by one instruction, and with VBMI a byte's upper bits
 * need not be cleared before it is looked up. Include after a lanes header. The one #ifdef. */
#ifndef PF_LOOKUPS_H
#define PF_LOOKUPS_H

LANE_FN vi low_nibbles(vi v)
{
    return vi_and(v, vi_set1(0x0F0F0F0F));
}

LANE_FN vi high_nibbles(vi v)
{
    return low_nibbles(vi_shr(v, 4));
}

/* join_words: the upper bytes of low, from bit `bits` on, 8, 16 or 24, and in front of them the lower ones of high.
 * look_low, look_high: that nibble of each byte replaced by a byte of table[16]. */
#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__)

LANE_FN vi join_words(vi low, vi high, int bits)
{
    return bits == 8 ? _mm512_shrdi_epi32(low, high, 8) : bits == 16 ? _mm512_shrdi_epi32(low, high, 16) :
                                                                       _mm512_shrdi_epi32(low, high, 24);
}

/* Of an index six bits count: the table is there four times. */
LANE_FN vi look_low(const uint8_t *table, vi v)
{
    return _mm512_permutexvar_epi8(v, _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table)));
}

LANE_FN vi look_high(const uint8_t *table, vi v)
{
    return look_low(table, vi_shr(v, 4));
}

#else

LANE_FN vi join_words(vi low, vi high, int bits)
{
    return vi_or(vi_shr(low, bits), vi_shl(high, 32 - bits));
}

LANE_FN vi look_low(const uint8_t *table, vi v)
{
    return vi_lookup(table, low_nibbles(v));
}

LANE_FN vi look_high(const uint8_t *table, vi v)
{
    return vi_lookup(table, high_nibbles(v));
}

#endif

#endif
