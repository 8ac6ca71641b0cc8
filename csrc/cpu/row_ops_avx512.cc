// Compiled with -mavx512f and the extensions named in CMakeLists.txt; called only after SelectCodePath has asked the
// CPU.
#include "cpu/avx2_bmi2.h"
#include "cpu/dict_row_avx512.h"
#include "cpu/ibp_row.h"

namespace ibp {

extern const CodePath kAvx512Path = {{IbpRow<Avx2Bmi2>::Ops(), DictRowAvx512<Avx2Bmi2>::Ops()}, "avx512"};

}  // namespace ibp
