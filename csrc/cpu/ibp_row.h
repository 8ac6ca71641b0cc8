// Codec "ibp" on one row, parametrised by how an instruction set packs and spreads bits:
//   Isa::Extract(x, m)   the bits of x where m is 1, moved together at the low end (PEXT)
//   Isa::Deposit(x, m)   the low bits of x moved to the places where m is 1 (PDEP)
//   Isa::Count(x)        number of ones
// Included by exactly one source file per instruction set, which is compiled with that set's flags; everything
// is in an anonymous namespace so that no copy compiled for a newer CPU can be linked into an older one's path.
#pragma once

#include <algorithm>

#include "cpu/bit_io.h"
#include "cpu/ibp_codec.h"
#include "cpu/row_ops.h"

namespace ibp {
namespace {

// Decoding reads with Load<uint64_t> and ReadBits, at the limit at the latest: there, where a group leaves no bits.
static_assert(kReadBitsBytes <= kSlackBytes);

// Row bits [64 * group, 64 * group + 64), zero past the row's end.
inline uint64_t LoadGroup(const IbpCodec& codec, const uint8_t* row, int32_t group) {
  const int32_t left = codec.layout.row_bytes - 8 * group;
  if (left >= 8) return Load<uint64_t>(row + 8 * static_cast<int64_t>(group));
  uint64_t x = 0;
  std::memcpy(&x, row + 8 * static_cast<int64_t>(group), static_cast<size_t>(left));
  return x;
}

// How chunks tile one group. Chunks of up to 64 bits: `fields` participation bits per group, spread over fields
// of field_bits bits. Longer chunks: one participation bit per `groups_per_chunk` groups.
struct ChunkTiling {
  int field_bits, fields, groups_per_chunk;
  uint64_t field_low_bits, field_mask;

  explicit ChunkTiling(int32_t chunk_bits) {
    field_bits = chunk_bits < 64 ? chunk_bits : 64;
    fields = 64 / field_bits;
    groups_per_chunk = chunk_bits <= 64 ? 1 : chunk_bits / 64;
    field_low_bits = FieldLowBits<uint64_t>(field_bits);
    field_mask = LowMask<uint64_t>(field_bits);
  }
  // All bits of every field whose low bit is set in `low`.
  uint64_t FillFields(uint64_t low) const { return low * field_mask; }
  int32_t FirstChunk(int32_t group) const { return groups_per_chunk == 1 ? group * fields : group / groups_per_chunk; }
};

// The low bit of every field of x that is not all 0.
inline uint64_t NonZeroFields(uint64_t x, const ChunkTiling& tiling) {
  const uint64_t high = tiling.field_low_bits << (tiling.field_bits - 1);
  return ((((x & ~high) + ~high) | x) & high) >> (tiling.field_bits - 1);
}

template <typename Isa>
struct IbpRow {
  // Bits of the group that the payload keeps, given the participation bits of the row.
  static uint64_t Unpacked(const ChunkTiling& tiling, const uint64_t* participation, int32_t group) {
    const int32_t chunk = tiling.FirstChunk(group);
    const uint64_t bits = ~(participation[chunk >> 6] >> (chunk & 63)) & LowMask<uint64_t>(tiling.fields);
    return tiling.FillFields(Isa::Deposit(bits, tiling.field_low_bits));
  }

  static int32_t Measure(const RowCodec& any, const uint8_t* row, uint64_t* participation) {
    const IbpCodec& codec = static_cast<const IbpCodec&>(any);
    const ChunkTiling tiling(codec.layout.chunk_bits);
    const int32_t groups = codec.num_groups;
    std::memset(participation, 0, 8 * static_cast<size_t>((codec.layout.num_chunks + 63) / 64));
    int64_t bits = codec.layout.num_chunks;
    for (int32_t group = 0; group < groups;) {
      const int32_t end = group + tiling.groups_per_chunk < groups ? group + tiling.groups_per_chunk : groups;
      uint64_t differing = 0;
      int64_t kept = 0, whole = 0;
      for (int32_t g = group; g < end; ++g) {
        const uint64_t x = LoadGroup(codec, row, g);
        differing |= (x & codec.mask[g]) ^ codec.bitval[g];
        if (tiling.groups_per_chunk > 1) {
          kept += Isa::Count(codec.valid[g] & ~codec.mask[g]);
          whole += Isa::Count(codec.valid[g]);
        }
      }
      const uint64_t unpacked_fields = NonZeroFields(differing, tiling);
      if (tiling.groups_per_chunk > 1) {
        bits += unpacked_fields ? whole : kept;
      } else {
        const uint64_t unpacked = tiling.FillFields(unpacked_fields);
        bits += Isa::Count(codec.valid[group] & (~codec.mask[group] | unpacked));
      }
      const int32_t chunk = tiling.FirstChunk(group);
      const int chunks_left = codec.layout.num_chunks - chunk;
      const uint64_t participating = Isa::Extract(~unpacked_fields, tiling.field_low_bits) &
                                     LowMask<uint64_t>(chunks_left < tiling.fields ? chunks_left : tiling.fields);
      participation[chunk >> 6] |= participating << (chunk & 63);
      group = end;
    }
    return static_cast<int32_t>((bits + 7) / 8);
  }

  static void Encode(const RowCodec& any, const uint8_t* row, const uint64_t* participation, uint8_t* payload,
                     int32_t) {
    const IbpCodec& codec = static_cast<const IbpCodec&>(any);
    const ChunkTiling tiling(codec.layout.chunk_bits);
    // Whole words of participation bits first; the rest starts the accumulator of the packed bits.
    const int32_t whole_words = codec.layout.num_chunks / 64;
    std::memcpy(payload, participation, 8 * static_cast<size_t>(whole_words));
    BitWriter writer{payload + 8 * static_cast<int64_t>(whole_words)};
    if (const int rest = codec.layout.num_chunks % 64) {
      writer.Put(participation[whole_words] & LowMask<uint64_t>(rest), rest);
    }
    for (int32_t group = 0; group < codec.num_groups; ++group) {
      const uint64_t kept = codec.valid[group] & (~codec.mask[group] | Unpacked(tiling, participation, group));
      writer.Put(Isa::Extract(LoadGroup(codec, row, group), kept), Isa::Count(kept));
    }
    writer.Finish();
  }

  static bool Decode(const RowCodec& any, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const IbpCodec& codec = static_cast<const IbpCodec&>(any);
    const ChunkTiling tiling(codec.layout.chunk_bits);
    const int64_t limit_bits = 8 * static_cast<int64_t>(limit_bytes);
    int64_t offset = codec.layout.num_chunks;
    if (offset > limit_bits) return false;
    // Returns false past the limit, else the group's bits through `x`.
    auto decode_group = [&](int32_t group, uint64_t& x) {
      const int32_t chunk = tiling.FirstChunk(group);
      const uint64_t participating = Load<uint64_t>(payload + (chunk >> 3)) >> (chunk & 7);
      const uint64_t unpacked =
          tiling.FillFields(Isa::Deposit(~participating & LowMask<uint64_t>(tiling.fields), tiling.field_low_bits));
      const uint64_t kept = codec.valid[group] & (~codec.mask[group] | unpacked);
      const int count = Isa::Count(kept);
      if (offset + count > limit_bits) return false;
      const uint64_t bits = ReadBits(payload, offset, count);
      x = Isa::Deposit(bits, kept) | (codec.bitval[group] & ~unpacked);
      offset += count;
      return true;
    };
    const int32_t whole_groups = codec.layout.row_bytes / 8;
    auto decode_to_row = [&](int32_t group) {
      uint64_t x;
      if (!decode_group(group, x)) return false;
      const size_t bytes = static_cast<size_t>(group < whole_groups ? 8 : codec.layout.row_bytes % 8);
      std::memcpy(row + 8 * static_cast<int64_t>(group), &x, bytes);
      return true;
    };
    if (!codec.sparse) {
      for (int32_t group = 0; group < codec.num_groups; ++group) {
        if (!decode_to_row(group)) return false;
      }
      return true;
    }
    // Where chunks participate and leave nothing in the payload, the row is bitval. Of features that are mostly zeros
    // that is nearly all.
    std::memcpy(row, codec.bitval.data(), static_cast<size_t>(codec.layout.row_bytes));
    const uint8_t* keeps = reinterpret_cast<const uint8_t*>(codec.keeps.data());
    const uint64_t group_low_bits = FieldLowBits<uint64_t>(tiling.fields);
    for (int32_t chunk = 0; chunk < codec.layout.num_chunks; chunk += 64) {
      const int count = std::min(codec.layout.num_chunks - chunk, 64);
      uint64_t whole = ~ReadBits(payload, chunk, count) & LowMask<uint64_t>(count);
      for (int step = 1; step < tiling.fields; step *= 2) whole |= whole >> step;
      const int32_t first = chunk / tiling.fields;
      uint64_t groups = Isa::Extract(whole, group_low_bits) | ReadBits(keeps, first, 64 / tiling.fields);
      for (; groups; groups &= groups - 1) {
        if (!decode_to_row(first + Isa::TrailingZeros(groups))) return false;
      }
    }
    return true;
  }

  static constexpr RowOps Ops() { return RowOps{&Measure, &Encode, &Decode}; }
};

}  // namespace
}  // namespace ibp
